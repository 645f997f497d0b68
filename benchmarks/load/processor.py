"""CPU seconds and memory of processes, the threads of their event loops apart; by Linux."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSeconds:
    """CPU seconds of processes. `whole`: all threads, those that ended too, without children.

    `event_loop`: the main threads, where asyncio runs.
    """

    whole: float
    event_loop: float

    @classmethod
    def of(cls, pids: Iterable[int]) -> "CpuSeconds":
        """Reads the seconds used so far by all of them. Raises OSError where one is gone."""
        ticks = nanoseconds = 0
        for pid in pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
            nanoseconds += int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])
        return cls(whole=ticks * TICK, event_loop=nanoseconds / 1e9)

    def __sub__(self, other: "CpuSeconds") -> "CpuSeconds":
        return CpuSeconds(whole=self.whole - other.whole, event_loop=self.event_loop - other.event_loop)


def peak_mebibytes(pid: int) -> float:
    """Reads the most memory that a process has had resident at once; see proc(5)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def family(pid: int) -> list[int]:
    """Finds a process and all that descend from it; gives their ids."""
    members = [pid]
    for parent in members:
        for tasks in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(OSError):  # a thread that has just ended
                members += map(int, tasks.read_text().split())
    return members

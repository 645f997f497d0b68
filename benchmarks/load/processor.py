"""CPU seconds and memory of processes, the threads of their event loops apart; by Linux."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

GRPC = ("event_engine", "grpc_", "timer_manager", "lifeguard")
"""Beginnings of the names that gRPC gives its threads."""
TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSeconds:
    """CPU seconds of processes. `whole`: all threads, those that ended too, without children.

    `event_loop`: the main threads, where asyncio runs. `grpc`: the threads that gRPC started and named, which read and
    write sockets.
    """

    whole: float
    event_loop: float
    grpc: float

    @classmethod
    def of(cls, pids: Iterable[int]) -> "CpuSeconds":
        """Reads the seconds used so far by all of them. Raises OSError where one is gone."""
        ticks = event_loop = grpc = 0
        for pid in pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):  # a thread that has just ended
                    nanoseconds = int((thread / "schedstat").read_text().split()[0])
                    event_loop += nanoseconds * (thread.name == str(pid))
                    grpc += nanoseconds * (thread / "comm").read_text().startswith(GRPC)
        return cls(whole=ticks * TICK, event_loop=event_loop / 1e9, grpc=grpc / 1e9)

    def __sub__(self, other: "CpuSeconds") -> "CpuSeconds":
        return CpuSeconds(
            whole=self.whole - other.whole,
            event_loop=self.event_loop - other.event_loop,
            grpc=self.grpc - other.grpc,
        )


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

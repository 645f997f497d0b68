"""CPU seconds and memory of a process, the thread of its event loop apart; by Linux."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSeconds:
    """CPU seconds of a process. `whole`: all threads, those that ended too, without children.

    `event_loop`: the main thread, where asyncio runs.
    """

    whole: float
    event_loop: float

    @classmethod
    def of(cls, pid: int) -> "CpuSeconds":
        """Reads the seconds used so far. Raises OSError where the process is gone."""
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        nanoseconds = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]
        return cls(whole=(int(fields[11]) + int(fields[12])) * TICK, event_loop=int(nanoseconds) / 1e9)

    def __sub__(self, other: "CpuSeconds") -> "CpuSeconds":
        return CpuSeconds(whole=self.whole - other.whole, event_loop=self.event_loop - other.event_loop)


def peak_mebibytes(pid: int) -> float:
    """Reads the most memory that a process has had resident at once; see proc(5)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def family(pid: int, name: str) -> dict[str, int]:
    """Finds a process and all that descend from it: their ids, the first by `name`, others by what they are called."""
    members, waiting = {name: pid}, [pid]
    while waiting:
        parent = waiting.pop()
        for tasks in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(OSError):  # a thread or a child that has just ended
                for child in map(int, tasks.read_text().split()):
                    members[f"{Path(f'/proc/{child}/comm').read_text().strip()} {child}"] = child
                    waiting.append(child)
    return members


def is_running(pid: int) -> bool:
    """Tells whether a process is there and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "XZ"

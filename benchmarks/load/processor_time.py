"""CPU seconds and memory of a process, by Linux."""

import os
from collections.abc import Mapping
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of all its threads until now; its children not counted."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK


def cpu_seconds_of(pids: Mapping[str, int]) -> dict[str, float]:
    """The same of several, by name."""
    return {name: cpu_seconds(pid) for name, pid in pids.items()}

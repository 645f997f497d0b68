"""How much memory some work takes at most, beside what the process has."""

from collections.abc import Callable
from pathlib import Path


def peak_growth(work: Callable[[], object]) -> int:
    """Bytes that the process grew by at most while `work` ran, by Linux."""

    def memory(key: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))

    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    work()
    return memory("VmHWM") - before

"""Resident memory of this process, by Linux's /proc."""

from pathlib import Path

from shared.memory import give_back_what_is_free

STATUS, REFERENCES = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""What proc(5) wants written to `clear_refs` so that the peak starts from the present number."""


def resident_from_now() -> float:
    """Gives free pages back, reads the resident bytes, and lets the peak start there."""
    give_back_what_is_free()
    REFERENCES.write_text(RESET_PEAK)
    return _bytes("VmRSS")


def peak_resident() -> float:
    """Reads the most resident bytes since `resident_from_now`."""
    return _bytes("VmHWM")


def _bytes(field: str) -> float:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return float(line.split()[1]) * 1024

"""Which processes hold the device, told by the driver and by what is mapped. Linux; knows no torch."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LIBRARIES = ("libcuda.so", "libtorch")
"""The driver's library, without which nobody reaches a device, and PyTorch's own."""
QUERY = ("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader")


def mapped(pid: int) -> list[str]:
    """Those of the libraries that a process has mapped. Raises OSError where it is gone."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return [name for name in LIBRARIES if name in maps]


def holders() -> list[int] | None:
    """Processes with a context on the device, by their ids as the driver knows them; None where it tells nothing."""
    try:
        answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = [line.strip() for line in answer.stdout.splitlines()]
    return [int(line) for line in lines if line.isdigit()] if answer.returncode == 0 else None


def verdict(before: list[int] | None, now: list[int] | None, worker: int, frontends: Sequence[int]) -> dict[str, Any]:
    """`before` and `now`: holders ahead of the pair and beside it. A container may show ids of its own, or none.

    `one_context`: whether exactly one process came to hold the device; None where the driver tells nothing of any.
    """
    libraries: Mapping[str, list[str]] = {"worker": mapped(worker)} | {
        f"frontend {number}": mapped(pid) for number, pid in enumerate(frontends)
    }
    return {
        "contexts": None if not now else len(now) - len(before or []),
        "one_context": None if not now else len(now) - len(before or []) == 1,
        "told_as_the_workers": None if not now else worker in now,
        "mapped": libraries,
        "frontends_without_device": not any(found for name, found in libraries.items() if name != "worker"),
    }


def complaint(found: Mapping[str, Any]) -> str:
    """What is wrong with a verdict, or nothing."""
    if not found["frontends_without_device"]:
        return "a frontend has the device's libraries mapped"
    if found["one_context"] is False:
        return f"{found['contexts']} processes hold the device"
    return ""

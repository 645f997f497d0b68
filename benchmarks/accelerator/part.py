"""A part of the run: a process of its own, so that one that hangs, or breaks the device's context, harms no other."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

GRACE = 20
"""Seconds to end in order once told to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`arguments` of Python; `seconds` it may take at most; `workloads` that it owes a row for each.

    `result` is the file that it writes; `needs_cuda`: whether it says nothing elsewhere.
    """

    name: str
    arguments: tuple[str, ...]
    seconds: float
    result: Path | None = None
    workloads: tuple[str, ...] = ()
    needs_cuda: bool = False

    def run(self, remaining: float) -> str:
        """Runs it for `remaining` seconds at most; what went wrong, or nothing."""
        allowed = min(self.seconds, remaining)
        start = time.monotonic()
        process = subprocess.Popen([sys.executable, *self.arguments])
        try:
            status = process.wait(timeout=allowed)
        except subprocess.TimeoutExpired:
            self._stop(process)
            return f"it was stopped after {time.monotonic() - start:.0f} s"
        return f"it ended with status {status}" if status else ""

    @staticmethod
    def _stop(process: "subprocess.Popen[bytes]") -> None:
        """Like Ctrl-C first: what it started is stopped by it in order. Failing that, all of it at once."""
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=GRACE)
        except subprocess.TimeoutExpired:
            for each in (process.pid, *descendants(process.pid)):
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            process.wait()


def descendants(pid: int) -> list[int]:
    """Processes that it started, and theirs, whatever session they are in; by Linux."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended since
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for known in found:  # grows on the way
        found += [child for child, parent in parents.items() if parent == known]
    return found[1:]

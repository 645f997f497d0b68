"""A peer in its own Python that answers lines: each asks for a run, and is answered with the seconds it took there."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np

from benchmarks.work import Array

ROOT = Path(__file__).parents[2]
KEEP_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1)}
KEEP_FREED_MEMORY |= {"MALLOC_ARENA_MAX": "1"}
"""What `gpu_worker.allocator.keep_freed_memory` does for us."""
POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


class Peer:
    """A process that runs `answering.answer`, from outside; it is ready in the `with` block, and ended with it.

    `command`: a Python and what it runs, such as `-m benchmarks.peers.maxsim_peer`. Every pool of threads there gets
    `threads`, and its memory is kept as ours is. Exits where the process ends, naming what sets it up.
    """

    def __init__(self, command: Sequence[str | Path], *, threads: int) -> None:
        self._command = [str(part) for part in command]
        pools = dict.fromkeys(POOLS, str(threads))
        environment = os.environ | KEEP_FREED_MEMORY | pools | {"PYTHONPATH": str(ROOT)}
        self._folder = tempfile.TemporaryDirectory()
        try:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except FileNotFoundError:
            self._folder.cleanup()
            sys.exit(f"{self._command[0]} is not there; `make peers` sets it up")

    def __enter__(self) -> Self:
        self._line()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(BrokenPipeError):  # it ended before it read all
            self._process.__exit__(kind, error, at)
        self._folder.cleanup()

    def file(self, name: str) -> str:
        """A path in a folder that lasts as long as the peer."""
        return str(Path(self._folder.name) / name)

    def ask(self, side: str, arguments: dict[str, Any], file: str = "") -> list[float]:
        """Seconds of each part of one run; its outcome goes to the file, where one is named."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"side": side, "arguments": arguments, "file": file}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._ended()
        seconds: list[float] = json.loads(self._line())["seconds"]
        return seconds

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline() or self._ended()

    def _ended(self) -> NoReturn:
        self.__exit__(None, None, None)  # nobody else does before the `with` block
        sys.exit(
            f"{' '.join(self._command)}: ended with {self._process.returncode}; `make peers` sets up what it needs"
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """Work of a peer, as `benchmarks.work` has it."""

    peer: Peer
    side: str
    arguments: dict[str, Any]

    def seconds(self) -> list[float]:
        return self.peer.ask(self.side, self.arguments)

    def outcome(self) -> Array:
        file = self.peer.file("outcome.npy")
        self.peer.ask(self.side, self.arguments, file)
        found: Array = np.load(file)
        return found

"""A peer in its own process, asked by lines of JSON over its pipes: each asks for runs and is told what they took.

The peer times itself, so nobody is charged for being asked, and it waits while others have their turn.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np
import numpy.typing as npt

from benchmarks.machine import ROOT, versions

VENVS = ROOT / ".venv-peers"
TURN = 0.3
"""Seconds that short runs are repeated for in one turn."""
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
    "MALLOC_ARENA_MAX": "1",
}
"""What `gpu_worker.device.allocator.keep_freed_memory` does for us."""
POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
SPIN = {"GOMP_SPINCOUNT": "10000"}
"""How long threads spin while they wait, as the worker sets it for itself."""


def modules_of(checkout: Path) -> dict[str, str]:
    """The environment in which Python finds a checkout's modules before all others.

    Older checkouts have their client in `protos`, where newer ones have no Python.
    """
    folders = [str(folder) for folder in (checkout, checkout / "client", checkout / "protos")]
    inherited = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join([*folders, *filter(None, [inherited])])}


def free_port() -> int:
    """On this host, for whoever cannot take one by itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def python_of(venv: str) -> Path:
    """The interpreter of a peer's own packages. Exits where `make peers` has not made it."""
    python = VENVS / venv / "bin" / "python"
    if not python.is_file():
        sys.exit(f"{python} is not there; `make peers` sets it up")
    return python


def versions_of(venv: str, names: Sequence[str]) -> dict[str, str]:
    """Of packages that a peer has, read from outside; none where it is not installed."""
    places = list((VENVS / venv).glob("lib/python*/site-packages"))
    return versions(names, places[0]) if places else {}


class Peer:
    """A process that runs `answering.answer`; it is ready in the `with` block, and ended with it.

    Every pool of threads there gets `threads`, and memory is kept as ours is. `checkout`: whose modules it runs.
    Exits where the process ends by itself, naming its command.
    """

    def __init__(self, command: Sequence[str | Path], *, threads: int, checkout: Path = ROOT) -> None:
        self._command = [str(part) for part in command]
        self._folder = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            self._command,
            cwd=checkout,
            env=os.environ | KEEP_FREED_MEMORY | SPIN | dict.fromkeys(POOLS, str(threads)) | modules_of(checkout),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        self._line()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(BrokenPipeError):  # it ended before it read all
            self._process.__exit__(kind, error, at)
        self._folder.cleanup()

    def run(self, side: str, turn: float = TURN, **arguments: Any) -> dict[str, float]:
        """`seconds` (the median), `fastest` and `cpu_seconds` (the mean, all threads) of runs that fill a turn."""
        return self._ask(side=side, turn=turn, arguments=arguments, file="")

    def outcome(self, side: str, **arguments: Any) -> npt.NDArray[np.float32]:
        """What one run gives, to be compared."""
        path = str(Path(self._folder.name) / "outcome.npy")
        self._ask(side=side, turn=0.0, arguments=arguments, file=path)
        found: npt.NDArray[np.float32] = np.load(path)
        return found

    def _ask(self, **asked: Any) -> dict[str, float]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._ended()
        told: dict[str, float] = json.loads(self._line())
        return told

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline() or self._ended()

    def _ended(self) -> NoReturn:
        self.__exit__(None, None, None)  # nobody else does before the `with` block
        sys.exit(f"{' '.join(self._command)}: ended with {self._process.returncode} before it answered")

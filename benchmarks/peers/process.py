"""A peer in a process of its own: a line of JSON over its pipe requests runs, and a line reports their time.

The peer times itself, so the pipe costs no side anything, and it waits while other sides are measured.
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
from harness.environment import python_path

VENVS = ROOT / ".venv-peers"
TURN = 0.3
"""Seconds for which short runs are repeated in one turn."""
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
    "MALLOC_ARENA_MAX": "1",
}
"""Environment variables with the effect that `gpu_worker.device.allocator.keep_freed_memory` has on our engine."""
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Environment variables that have PyTorch and glibc ask for huge pages. Other products get them, since our worker asks
for huge pages itself."""
POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
SPIN = {"GOMP_SPINCOUNT": "1000"}
"""The time that waiting threads spin, as the worker sets it for itself."""


def modules_of(checkout: Path) -> dict[str, str]:
    """The environment in which Python finds a checkout's modules before all others."""
    return {"PYTHONPATH": python_path(checkout)}


def free_port() -> int:
    """Finds a free port of this host, for a server that cannot choose one itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def program_of(venv: str, program: str = "python") -> Path:
    """Gives a program of a peer's own packages. Exits where `make peers` (of vLLM `make vllm`) has not made it."""
    path = VENVS / venv / "bin" / program
    if not path.is_file():
        sys.exit(f"{path} is not there; `make {'vllm' if venv == 'vllm' else 'peers'}` sets it up")
    return path


def versions_of(venv: str, names: Sequence[str]) -> dict[str, str]:
    """Reads the versions of a peer's packages without starting it; empty where it is not installed."""
    places = list((VENVS / venv).glob("lib/python*/site-packages"))
    return versions(names, places[0]) if places else {}


class PeerRefused(Exception):
    """A peer cannot do here what it was started for; the text is its reason."""


class Peer:
    """A process that runs `answering.answer`: ready within the `with` block, ended with it.

    Every thread pool there has `threads` threads, and freed memory is kept as in our worker. `checkout`: the source of
    its modules. Exits with the command's name where the process ends by itself; entering it raises PeerRefused where
    it cannot do here what it was started for.
    """

    def __init__(self, command: Sequence[str | Path], *, threads: int, checkout: Path = ROOT) -> None:
        self._command = [str(part) for part in command]
        huge_pages = {} if self._command[0] == sys.executable else HUGE_PAGES
        self._folder = tempfile.TemporaryDirectory()
        settings = KEEP_FREED_MEMORY | huge_pages | SPIN | dict.fromkeys(POOLS, str(threads)) | modules_of(checkout)
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process: subprocess.Popen[str] = subprocess.Popen(
            self._command, cwd=checkout, env=os.environ | settings, **pipes
        )

    def __enter__(self) -> Self:
        first = json.loads(self._line())
        if "refused" in first:
            self.__exit__(None, None, None)  # the `with` block does not begin
            raise PeerRefused(first["refused"])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(BrokenPipeError):  # it ended before it had read everything
            self._process.__exit__(kind, error, at)
        self._folder.cleanup()

    def run(self, side: str, turn: float = TURN, **arguments: Any) -> dict[str, float]:
        """Repeats runs for `turn` seconds: median `seconds`, `fastest`, and mean `cpu_seconds` of all threads."""
        return self._request(side=side, turn=turn, arguments=arguments, file="")

    def outcome(self, side: str, **arguments: Any) -> npt.NDArray[np.float32]:
        """Runs the work once and gives its output, to be compared."""
        path = str(Path(self._folder.name) / "outcome.npy")
        self._request(side=side, turn=0.0, arguments=arguments, file=path)
        output: npt.NDArray[np.float32] = np.load(path)
        return output

    def _request(self, **request: Any) -> dict[str, float]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._ended()
        reply: dict[str, float] = json.loads(self._line())
        return reply

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline() or self._ended()

    def _ended(self) -> NoReturn:
        self.__exit__(None, None, None)  # the `with` block may not have begun
        sys.exit(f"{' '.join(self._command)}: ended with {self._process.returncode} before it answered")

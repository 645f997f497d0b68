"""Infinity, a server of embeddings over HTTP, in a Python of its own (`make peers`)."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers.process import HUGE_PAGES, KEEP_FREED_MEMORY, POOLS, VENVS, free_port

PROGRAM = VENVS / "infinity" / "bin" / "infinity_emb"
MODEL = "minilm"
START_SECONDS = 180.0
"""Seconds within which it must be ready: it loads and warms up before it listens."""
QUIET = {"INFINITY_ANONYMOUS_USAGE_STATS": "0", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
FLAGS = (
    *("--no-bettertransformer", "--no-compile", "--no-vector-disk-cache", "--engine", "torch", "--device", "cpu"),
    *("--served-model-name", MODEL, "--batch-size", "32", "--host", "127.0.0.1", "--log-level", "warning"),
)
"""Flags as recommended for a processor: batches of the default size, and no cache of the vectors of past texts."""


@contextmanager
def served(folder: Path, *, threads: int) -> Iterator[tuple[str, int]]:
    """Runs a server of the model in `folder` on a free port; yields its URL and process id.

    Exits where it is not installed, or where it ends by itself.
    """
    if not PROGRAM.is_file():
        sys.exit(f"{PROGRAM} is not there; `make peers` sets it up")
    port = free_port()
    command: list[str | Path] = [PROGRAM, "v2", "--model-id", folder, "--port", str(port), *FLAGS]
    environment = os.environ | QUIET | KEEP_FREED_MEMORY | HUGE_PAGES | dict.fromkeys(POOLS, str(threads))
    environment.pop("PYTHONPATH", None)  # its entries are for another Python
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait(f"http://127.0.0.1:{port}", process)
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(address: str, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            sys.exit(f"infinity ended with {process.returncode}; `make peers` sets up what it needs")
        try:
            urllib.request.urlopen(f"{address}/health", timeout=2).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    sys.exit(f"infinity was not ready within {START_SECONDS:.0f} s")


def body(texts: list[str], *, rerank: bool) -> bytes:
    """Builds the body of a request: OpenAI's shape with base64, its cheaper encoding, or Jina's, query first."""
    embed = {"input": texts, "encoding_format": "base64"}
    return json.dumps({"model": MODEL} | ({"query": texts[0], "documents": texts[1:]} if rerank else embed)).encode()

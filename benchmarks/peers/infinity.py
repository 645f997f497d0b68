"""Infinity, a server of embeddings over HTTP, in a Python of its own (`make peers`)."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers.process import HUGE_PAGES, KEEP_FREED_MEMORY, POOLS, VENVS, free_port

PROGRAM = VENVS / "infinity" / "bin" / "infinity_emb"
MODEL = "minilm"
START_SECONDS, STOP_SECONDS = 180.0, 10.0
"""Seconds within which it must be ready, since it loads and warms up before it listens; and within which it stops."""
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
            wait_healthy(f"http://127.0.0.1:{port}", "infinity", {"infinity_emb": process}, START_SECONDS)
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_healthy(url: str, name: str, programs: Mapping[str, "subprocess.Popen[bytes]"], seconds: float) -> None:
    """Waits until GET /health says 200. Exits where one of a server's programs ends, or time runs out."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for program, process in programs.items():
            if process.poll() is not None:
                sys.exit(f"{name}: {program} ended with {process.returncode}")
        try:
            urllib.request.urlopen(f"{url}/health", timeout=2).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    sys.exit(f"{name} was not ready within {seconds:.0f} s")


def body(texts: list[str], *, rerank: bool) -> bytes:
    """Builds the body of a request: OpenAI's shape with base64, its cheaper encoding, or Jina's, query first."""
    embed = {"input": texts, "encoding_format": "base64"}
    return json.dumps({"model": MODEL} | ({"query": texts[0], "documents": texts[1:]} if rerank else embed)).encode()

"""Infinity, a server of embeddings over HTTP, in a Python of its own (`make peers`).

`served` gives what a load generator needs to know: where to post, what to post, how to read vectors, how to count
tokens. Infinity's own `usage` counts characters unless told otherwise, so tokens are counted here.
"""

import base64
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from benchmarks.peers.peer import KEEP_FREED_MEMORY
from benchmarks.peers.venv import Venv

VENV = Venv(name="infinity")
PROGRAM = VENV.programs / "infinity_emb"
MODEL = "minilm"
HEADERS = {"Content-Type": "application/json"}
QUIET = {"INFINITY_ANONYMOUS_USAGE_STATS": "0", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server that is ready. `folder` holds the model, `address` is http://host:port, `pid` its only process."""

    address: str
    folder: Path
    pid: int
    longest: int

    @property
    def url(self) -> str:
        """Where texts are posted."""
        return f"{self.address}/embeddings"

    def body(self, texts: Sequence[str]) -> bytes:
        """What is posted. Base64 is the cheaper answer for both sides, and what OpenAI's own client asks for."""
        return json.dumps({"model": MODEL, "input": list(texts), "encoding_format": "base64"}).encode()

    def rows(self, answer: bytes) -> npt.NDArray[np.float32]:
        """The vectors [N, D] of an answer, in the order of its texts."""
        found = sorted(json.loads(answer)["data"], key=lambda each: int(each["index"]))
        return np.stack([np.frombuffer(base64.b64decode(each["embedding"]), dtype="<f4") for each in found])

    def tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text as the model sees it: with special ones, cut at its longest."""
        return [len(each.ids) for each in self._tokenizer.encode_batch(list(texts))]

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.longest)
        return tokenizer

    def embed(self, texts: Sequence[str], timeout: float = 60) -> npt.NDArray[np.float32]:
        """One request, for checking."""
        request = urllib.request.Request(self.url, data=self.body(texts), headers=HEADERS)
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return self.rows(answer.read())


@contextmanager
def served(
    folder: Path, *, threads: int = 2, batch_size: int = 32, compiled: bool = False, patience: float = 180
) -> Iterator[Served]:
    """A server of the model in `folder` on a free port, stopped in the end. It keeps no vectors of past texts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(PROGRAM), "v2", "--model-id", str(folder), "--served-model-name", MODEL, "--engine", "torch"]
    command += ["--no-bettertransformer", "--compile" if compiled else "--no-compile", "--device", "cpu"]
    command += ["--no-vector-disk-cache"]
    command += ["--batch-size", str(batch_size), "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
    if not PROGRAM.is_file():
        sys.exit(f"{PROGRAM} is not there; `make peers` sets it up")
    longest = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    environment = (
        os.environ | QUIET | KEEP_FREED_MEMORY | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    )
    environment.pop("PYTHONPATH", None)  # of another Python
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        server = Served(address=f"http://127.0.0.1:{port}", folder=folder, pid=process.pid, longest=longest)
        try:
            _wait(server, process, patience)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(server: Served, process: "subprocess.Popen[bytes]", patience: float) -> None:
    """Until it answers; it loads and rehearses before it listens."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        if process.poll() is not None:
            sys.exit(f"infinity ended with {process.returncode}; `make peers` sets up what it needs")
        try:
            urllib.request.urlopen(f"{server.address}/health", timeout=2).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
        else:
            return
    sys.exit(f"infinity was not ready within {patience:.0f} s")

"""Sides that serve: both of our services, another product over HTTP, and what the load generator measures of either."""

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from benchmarks.load.generator import Load
from benchmarks.load.processor import family
from benchmarks.machine import ROOT
from benchmarks.peers.process import HUGE_PAGES, KEEP_FREED_MEMORY, POOLS, free_port, modules_of, program_of
from benchmarks.workloads import MAX_TOKENS, MINILM, Workload, minilm_folder
from harness.stack import Stack, stack

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "INFINITY_ANONYMOUS_USAGE_STATS": "0",
    "PYTHONPATH": "",
}
"""Environment of other products: they report no use, ask no hub, and see no module of another Python."""
START_SECONDS, STOP_SECONDS, LAST_LINES = 900.0, 30.0, 10
"""Seconds within which another product must be ready, compiling included, and gone; lines shown of one that fails."""
INFINITY_FLAGS = (
    *("--no-bettertransformer", "--no-compile", "--no-vector-disk-cache", "--engine", "torch", "--device", "cpu"),
    *("--served-model-name", MINILM, "--batch-size", "32", "--host", "127.0.0.1", "--log-level", "warning"),
)
"""Flags as recommended for a processor: batches of the default size, and no cache of the vectors of past texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running side. `address`: where calls go. `pids`: the processes of each part whose CPU is measured. `worker`:
    the address of a worker of ours."""

    address: str
    pids: Mapping[str, Sequence[int]]
    worker: str = ""


@contextmanager
def running_stack(model: str, **options: Any) -> Iterator[Stack]:
    """Runs `harness.stack` by an event loop in a thread, which reads the services' logs. Raises MemberFailed."""
    ready, done = Future[Stack](), threading.Event()

    async def run() -> None:
        try:
            async with stack(model, **options) as running:
                ready.set_result(running)
                await asyncio.to_thread(done.wait)
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield ready.result()
    finally:
        done.set()
        thread.join()


def server_of(running: Stack, frontends: int = 0) -> Server:
    """The first so many frontends by gRPC, or all, with their worker."""
    chosen = running.frontends[: frontends or None]
    address = ",".join(frontend.address for frontend in chosen)
    pids = {"worker": [running.worker.pid], "frontend": [front.pid for front in chosen]}
    return Server(address=address, pids=pids, worker=running.worker.address)


@contextmanager
def pair(threads: int, checkout: Path = ROOT) -> Iterator[Server]:
    """Runs a worker of MiniLM and a frontend of a checkout on free ports. Raises MemberFailed."""
    worker = {"threads": threads, "max-tokens": MAX_TOKENS}
    with running_stack(MINILM, worker=worker, checkout=checkout) as running:
        yield server_of(running)


@contextmanager
def other_server(
    name: str, command: Sequence[str | Path], url: str, environment: dict[str, str]
) -> Iterator[list[int]]:
    """Runs another product in a session of its own until the end; yields its processes once GET /health says 200.

    Exits where it ends before, or is not ready in time, with the end of its log.
    """
    with TemporaryFile("w+") as log:
        variables = os.environ | QUIET | environment
        process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait_healthy(name, process, url, log)
            yield family(process.pid)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started and did not end
            process.wait()


def _wait_healthy(name: str, process: "subprocess.Popen[bytes]", url: str, log: IO[str]) -> None:
    until, reason = time.monotonic() + START_SECONDS, f"was not ready within {START_SECONDS:.0f} s"
    while time.monotonic() < until:
        if process.poll() is not None:
            reason = f"ended with {process.returncode}"
            break
        with suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"{url}/health", timeout=2).close()
            return
        time.sleep(0.1)
    log.seek(0)
    sys.exit("\n".join([f"{name} {reason}", *log.read().splitlines()[-LAST_LINES:]]))


@contextmanager
def infinity(threads: int) -> Iterator[Server]:
    """Runs Infinity with MiniLM in a Python of its own. Exits where `make peers` has not installed it."""
    url, environment = f"http://127.0.0.1:{free_port()}", KEEP_FREED_MEMORY | HUGE_PAGES
    program, port = program_of("infinity", "infinity_emb"), url.rpartition(":")[2]
    command: list[str | Path] = [program, "v2", "--model-id", minilm_folder(), "--port", port, *INFINITY_FLAGS]
    with other_server("infinity", command, url, environment | dict.fromkeys(POOLS, str(threads))) as processes:
        yield Server(address=f"{url}/embeddings", pids={"server": processes})


def generated(server: Server, workload: Workload, **options: Any) -> dict[str, float]:
    """Runs a `Load` of these options in a process of its own, and gives its figures. Exits where it fails."""
    load = Load(address=server.address, workload=workload, watch=server.pids, **options)
    command, variables = [sys.executable, "-m", "benchmarks.load.generator"], os.environ | modules_of(ROOT)
    done = subprocess.run(command, cwd=ROOT, env=variables, input=pickle.dumps(load), stdout=subprocess.PIPE)
    if done.returncode:
        sys.exit(f"{workload.says}: the clients ended with {done.returncode}")
    figures: dict[str, float] = json.loads(done.stdout)["figures"]
    return figures

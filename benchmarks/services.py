"""Both services with 1 and 64 clients of 16 and 128 tokens.

All sides are up all the time: ours, with `--against` another checkout (a path) or Infinity over HTTP, the engine alone
on the same texts as one job, and a null grpc.aio server. Clients are a process of their own on the same cores. CPU is
reported for a request, the thread of the event loop apart.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.benchmark import ALONE, INFINITY, OURS, Figures, Options, Turn
from benchmarks.engine import peer_of, products
from benchmarks.load.null_server import null_server
from benchmarks.machine import ROOT
from benchmarks.peers import infinity
from benchmarks.peers.answering import write_texts
from benchmarks.peers.process import Peer, modules_of
from benchmarks.workloads import MAX_TOKENS, MINILM, minilm_folder, named, token_ids
from harness.stack import Stack, stack

OUR_SIDE, RATE, COMPARED = OURS, "tokens/s", ("requests/s", "goodput/s", "p50 ms")
PEERS = {"infinity": ("infinity-emb", "torch")}
NULL, ENGINE = "null grpc.aio server", "engine alone"
SHORT = "16-tokens"
LOADS = ((1, "16-tokens"), (64, "16-tokens"), (1, "128-tokens"), (64, "128-tokens"))
"""Clients, and the workload of each."""
READY = re.compile(r"Ready: worker (\S+) \(process (\d+)\), frontend (\S+) \(process (\d+)\)")
"""The line that `python -m harness` prints when it is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running side. `address`: where calls go. `pids`: processes whose CPU is measured, by name."""

    address: str
    pids: Mapping[str, int]


@contextmanager
def pair(checkout: Path, threads: int) -> Iterator[Server]:
    """Runs a worker and a frontend of a checkout on free ports. Exits where they do not start."""
    ports = ("--worker", "127.0.0.1:0", "--frontend", "127.0.0.1:0")
    settings = {"SELVAGE_WORKER_THREADS": str(threads), "SELVAGE_WORKER_MAX_TOKENS": str(MAX_TOKENS)}
    environment = os.environ | settings | modules_of(checkout) | {"PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "harness", "--model", MINILM, *ports]
    with subprocess.Popen(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = next(filter(None, map(READY.search, process.stdout)), None)
            if ready is None:
                sys.exit(f"the services of {checkout} did not start")
            yield Server(address=ready[3], pids={"worker": int(ready[2]), "frontend": int(ready[4])})
        finally:
            process.terminate()
            process.communicate()  # it still writes while it drains


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


def generated(server: Server, workload: str, **options: object) -> dict[str, float]:
    """Runs the load generator in a process of its own and gives its figures. Exits where it fails."""
    load = {"target": server.address, "workload": workload} | options
    flags = [part for name, value in load.items() for part in (f"--{name}", str(value))]
    watched = [part for name, pid in server.pids.items() for part in ("--watch", f"{name}={pid}")]
    command = [sys.executable, "-m", "benchmarks", "load", "--json", *flags, *watched]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | modules_of(ROOT), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{command!r}: ended with {done.returncode}")
    figures: dict[str, float] = json.loads(done.stdout)["figures"]
    return figures


def null(server: Server, workload: str, **options: object) -> Figures:
    """Measures the null server, which computes no tokens."""
    figures = generated(server, workload, **options)
    return {name: value for name, value in figures.items() if name != "tokens/s"}


def engine_alone(peer: Peer, file: str, texts: int, tokens: int) -> Figures:
    """Measures the engine on as many texts as there are clients, as one job that is repeated."""
    times = peer.run("embed", 1.0, file=file)
    rate = texts / times["seconds"]
    cpu = times["cpu_seconds"] / texts * 1e3
    return {"requests/s": rate, "tokens/s": rate * tokens, "worker: CPU ms/request": cpu}


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts all sides; yields their turns under all loads."""
    threads = options.threads
    with ExitStack() as cleanup:
        peer = cleanup.enter_context(peer_of(threads))
        servers = {name: cleanup.enter_context(pair(path, threads)) for name, path in options.checkouts.items()}
        if INFINITY in options.against:
            address, pid = cleanup.enter_context(infinity.served(minilm_folder(), threads=threads))
            servers[INFINITY] = Server(address=address, pids={"server": pid})
        address, pid = cleanup.enter_context(null_server())
        bare, alone = Server(address=address, pids={"server": pid}), products(peer)
        cases: dict[str, dict[str, Turn]] = {}
        for clients, workload in LOADS:
            lengths = [request[0] for request in named()[workload].requests[:clients]]
            file = write_texts(token_ids(lengths), options.folder / f"{clients} {workload}.npz")
            load = {"clients": clients, "seconds": options.seconds}
            sides: dict[str, Turn] = {
                name: partial(generated, server, workload, **load) for name, server in servers.items()
            }
            if workload == SHORT:  # gRPC costs the same for texts of any length
                sides[NULL] = partial(null, bare, workload, **load)
            sides[ENGINE] = partial(engine_alone, peer, file, clients, lengths[0])
            cases[f"{clients} client{'s' * (clients > 1)}, {lengths[0]} tokens"] = {**sides, ALONE: alone}
        yield cases

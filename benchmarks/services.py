"""Both services with 1 and 64 clients of 16 and 128 tokens.

All sides are up all the time: ours, with `--against` another checkout (a path) or Infinity over HTTP, the engine alone
on the same texts as one job, and a null grpc.aio server. Clients are a process of their own on the same cores. CPU is
reported for a request, the thread of the event loop apart. `% of what the CPU allows`: requests/s against the cores
over the CPU seconds that a request takes in the engine alone, the frontend and the clients.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.benchmark import INFINITY, OURS, Options
from benchmarks.engine import peer_of, products
from benchmarks.load.null_server import null_server
from benchmarks.load.processor import children
from benchmarks.machine import ROOT
from benchmarks.peers import infinity
from benchmarks.peers.answering import write_texts
from benchmarks.peers.process import Peer, modules_of
from benchmarks.rounds import ALONE, Figures, Turn
from benchmarks.workloads import MAX_TOKENS, MINILM, minilm_folder, named, token_ids

OUR_SIDE, RATE, COMPARED = OURS, "tokens/s", ("requests/s", "goodput/s", "p50 ms")
PEERS = {"infinity": ("infinity-emb", "torch")}
NULL, ENGINE = "null grpc.aio server", "engine alone"
SHORT = "16-tokens"
LOADS = ((1, "16-tokens"), (64, "16-tokens"), (1, "128-tokens"), (64, "128-tokens"))
"""Clients, and the workload of each."""
READY = re.compile(
    r"Ready[.:] [Ww]orker (\S+)(?: \(process \d+\))?, frontend ([^\s.,]\S*?)\.? (?:\(process \d+\)|Ctrl)"
)
"""The line that `python -m harness` prints when it is ready, here and in older checkouts."""


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
            members = children(process.pid)
            pids = {"worker": members["gpu_worker"], "frontend": members["frontend_service"]}
            yield Server(address=ready[2], pids=pids)
        finally:
            process.terminate()
            process.communicate()  # it still writes while it drains


def load_command(server: Server, workload: str, **options: object) -> list[str]:
    """Makes the command line of the load generator."""
    load = {"target": server.address, "workload": workload} | options
    flags = [part for name, value in load.items() for part in (f"--{name}", str(value))]
    watched = [part for name, pid in server.pids.items() for part in ("--watch", f"{name}={pid}")]
    return [sys.executable, "-m", "benchmarks", "load", "--json", *flags, *watched]


def generated(server: Server, workload: str, **options: object) -> dict[str, float]:
    """Runs the load generator in a process of its own and gives its figures. Exits where it fails."""
    command = load_command(server, workload, **options)
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
        all_servers = dict(servers)
        if INFINITY in options.against:
            address, pid = cleanup.enter_context(infinity.served(minilm_folder(), threads=threads))
            all_servers[INFINITY] = Server(address=address, pids={"server": pid})
        address, pid = cleanup.enter_context(null_server())
        bare, alone = Server(address=address, pids={"server": pid}), products(peer)
        cases: dict[str, dict[str, Turn]] = {}
        for clients, workload in LOADS:
            lengths = [request[0] for request in named()[workload].requests[:clients]]
            file = write_texts(token_ids(lengths), options.folder / f"{clients} {workload}.npz")
            load = {"clients": clients, "seconds": options.seconds}
            sides: dict[str, Turn] = {
                name: partial(generated, server, workload, **load) for name, server in all_servers.items()
            }
            if workload == SHORT:  # gRPC costs the same for texts of any length
                sides[NULL] = partial(null, bare, workload, **load)
            sides[ENGINE] = partial(engine_alone, peer, file, clients, lengths[0])
            cases[f"{clients} client{'s' * (clients > 1)}, {lengths[0]} tokens"] = {**sides, ALONE: alone}
        yield cases


def finished(sides: Mapping[str, Sequence[Figures]]) -> dict[str, Sequence[Figures]]:
    """Adds the share of the rate that the CPU seconds of engine, frontend and clients would allow, round by round."""
    figures = dict(sides)
    for side, rounds in sides.items():
        if ENGINE in sides and "frontend: CPU ms/request" in rounds[0]:
            shares = list[Figures]()
            for measured, alone in zip(rounds, sides[ENGINE], strict=True):
                other_cpu = measured["frontend: CPU ms/request"] + measured["clients: CPU ms/request"]
                limit = (os.cpu_count() or 1) / (alone["worker: CPU ms/request"] + other_cpu) * 1e3
                shares.append({**measured, "% of what the CPU allows": 100 * measured["requests/s"] / limit})
            figures[side] = shares
    return figures

"""Both services with 1 and 64 clients of 16 and 128 tokens.

All sides are up all the time: ours, with `--against` another checkout (a path) or Infinity over HTTP, the engine alone
on the same texts as one job, and a null grpc.aio server. Clients are a process of their own on the same cores. CPU is
reported for a request, the thread of the event loop apart.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from benchmarks.benchmark import ALONE, INFINITY, OURS, Figures, Options, Turn
from benchmarks.engine import peer_of, products
from benchmarks.load.null_server import null_server
from benchmarks.peers.answering import write_texts
from benchmarks.peers.process import Peer
from benchmarks.servers import Server, generated, infinity, pair
from benchmarks.workloads import Workload, named, token_ids

OUR_SIDE, RATE, COMPARED = OURS, "tokens/s", ("requests/s", "goodput/s", "p50 ms")
PEERS = {"infinity": ("infinity-emb", "torch")}
NULL, ENGINE = "null grpc.aio server", "engine alone"
SHORT = "16-tokens"
LOADS = ((1, SHORT), (64, SHORT), (1, "128-tokens"), (64, "128-tokens"))
"""Clients, and the workload of each."""


def null(server: Server, workload: Workload, **options: Any) -> Figures:
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
        servers = {name: cleanup.enter_context(pair(threads, path)) for name, path in options.checkouts.items()}
        if INFINITY in options.against:
            servers[INFINITY] = cleanup.enter_context(infinity(threads))
        address, pid = cleanup.enter_context(null_server())
        bare, alone = Server(address=address, pids={"server": [pid]}), products(peer)
        cases: dict[str, dict[str, Turn]] = {}
        for clients, name in LOADS:
            workload = named()[name]
            lengths = [request[0] for request in workload.requests[:clients]]
            file = write_texts(token_ids(lengths), options.folder / f"{clients} {name}.npz")
            load: dict[str, Any] = {"workload": workload, "clients": clients, "seconds": options.seconds}
            sides: dict[str, Turn] = {side: partial(generated, server, **load) for side, server in servers.items()}
            if name == SHORT:  # gRPC costs the same for texts of any length
                sides[NULL] = partial(null, bare, **load)
            sides[ENGINE] = partial(engine_alone, peer, file, clients, lengths[0])
            cases[f"{clients} client{'s' * (clients > 1)}, {lengths[0]} tokens"] = {**sides, ALONE: alone}
        yield cases

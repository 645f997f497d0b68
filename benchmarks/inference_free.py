"""Queries of inference-free SPLADE, looked up by one core of a frontend, against the same ones by a SPLADE encoder.

Both sides are a worker and a frontend, whose threads are kept to one core; clients and the encoder may use all. The
encoder has MiniLM's shape and MiniLM's vocabulary, the table a weight for each token of it; both are random. A query
has 14 words. The 64 largest weights are asked for: an encoder with random weights gives half of its vocabulary some.
"""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks import random_folders
from benchmarks.benchmark import Options
from benchmarks.load.generator import Load, drive
from benchmarks.machine import ROOT
from benchmarks.rounds import Figures, Turn
from benchmarks.services import Server, pair
from benchmarks.workloads import MINILM, Workload

OUR_SIDE, RATE, COMPARED = "inference-free", "tokens/s", ("requests/s", "p50 ms")
PEERS: Mapping[str, Sequence[str]] = {}
ENCODER = "SPLADE encoder"
CLIENTS = (1, 64)
QUERIES = Workload(
    name="queries", says="queries of 14 words", model=MINILM, kind="query", requests=((16,),) * 256, in_flight=CLIENTS
)


def keep_to_one_core(pid: int) -> None:
    """Keeps a process, with the threads that it has and will have, to the first core of this one."""
    core = min(os.sched_getaffinity(0))
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {core})


def turn(server: Server, clients: int, seconds: float) -> Figures:
    """Measures one side with so many clients."""
    load = Load(address=server.address, workload=QUERIES, clients=clients, seconds=seconds, watch=dict(server.pids))
    figures: Figures = asyncio.run(drive(load))["figures"]
    return figures


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Writes both models, starts services with each, and yields their turns."""
    folders = {
        OUR_SIDE: random_folders.write_splade(MINILM, options.folder / "inference-free", table=True),
        ENCODER: random_folders.write_splade(MINILM, options.folder / "splade", table=False),
    }
    with ExitStack() as cleanup:
        servers = {
            side: cleanup.enter_context(pair(ROOT, options.threads, str(folder))) for side, folder in folders.items()
        }
        for server in servers.values():
            keep_to_one_core(server.pids["frontend"])
        yield {
            f"{clients} client{'s' * (clients > 1)}": {
                side: partial(turn, server, clients, options.seconds) for side, server in servers.items()
            }
            for clients in CLIENTS
        }

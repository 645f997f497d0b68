"""The engine without services: 1, 8 and 64 texts of 16 tokens as single jobs and as one, and reranks.

What single jobs take beyond one job is what a job costs beside its tokens; what a rerank takes beyond its encoder alone
over the same steps is what scoring costs. With `--against PATH` the engine of another checkout takes turns with ours;
each runs the `benchmarks/ours.py` of its own.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.benchmark import ALONE, OURS, Figures, Options, Turn
from benchmarks.machine import ROOT
from benchmarks.peers.answering import write_texts
from benchmarks.peers.process import Peer
from benchmarks.workloads import MAX_TOKENS, MINILM, QUERY, token_ids

OUR_SIDE, RATE, COMPARED = OURS, "tokens/s", ("tokens/s",)
TOKENS, COUNTS = 16, (1, 8, 64)
RERANKS = ((50, 256), (1000, 16))
"""Documents, and tokens of each, by rerank."""


def peer_of(threads: int, checkout: Path = ROOT, dtype: str = "float32", model: str = MINILM) -> Peer:
    """Starts the engine of a checkout with a model, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.peers.selvage_peer", model, dtype, str(MAX_TOKENS)]
    return Peer(command, threads=threads, checkout=checkout)


def products(peer: Peer) -> Turn:
    """Makes the turn of products alone: tokens/s if only the linear layers' products took time."""
    tokens = float(peer.outcome("products"))
    return lambda: {"tokens/s": tokens / peer.run("products")["fastest"]}


def turn(peer: Peer, work: str, texts: int, tokens: int, arguments: Mapping[str, Any]) -> Figures:
    """Runs the work on all texts at once."""
    times = peer.run(work, **arguments)
    rate = {"tokens/s": tokens / times["seconds"], "ms": times["seconds"] * 1e3}
    return rate | {"CPU ms/text": times["cpu_seconds"] / texts * 1e3}


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts all checkouts' engines; yields their turns in all cases."""
    with ExitStack() as cleanup:
        loading = {name: peer_of(options.threads, path) for name, path in options.checkouts.items()}
        running = {name: cleanup.enter_context(peer) for name, peer in loading.items()}
        alone, cases = products(running[OURS]), dict[str, dict[str, Turn]]()
        for count in COUNTS:
            file = write_texts(token_ids((TOKENS,) * count), options.folder / f"{count}.npz")
            for jobs in dict.fromkeys((count, 1)):
                name = f"{count} x {TOKENS} tokens, {'one job' if jobs == 1 else 'single jobs'}"
                arguments = {"file": file, "jobs": jobs}
                sides = {
                    side: partial(turn, peer, "embed", count, count * TOKENS, arguments)
                    for side, peer in running.items()
                }
                cases[name] = {**sides, ALONE: alone}
        for documents, length in RERANKS:
            lengths = (QUERY, *(length,) * documents)
            arguments = {"file": write_texts(token_ids(lengths), options.folder / f"{documents} documents.npz")}
            size = (documents, sum(lengths), arguments)
            sides = {side: partial(turn, peer, "rerank", *size) for side, peer in running.items()}
            encoder = {"its encoder alone": partial(turn, running[OURS], "encoder", *size)}
            cases[f"rerank of {documents:,} x {length} tokens"] = {**sides, **encoder, ALONE: alone}
        yield cases

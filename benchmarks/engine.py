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

from benchmarks.benchmark import OURS, Options
from benchmarks.machine import ROOT
from benchmarks.peers.answering import write_texts
from benchmarks.peers.process import Peer
from benchmarks.rounds import ALONE, Figures, Turn
from benchmarks.workloads import MAX_TOKENS, MINILM, QUERY, token_ids

WHOSE, RATE, COMPARED = OURS, "tokens/s", ("tokens/s",)
PEERS: Mapping[str, tuple[str, ...]] = {}
TOKENS, COUNTS = 16, (1, 8, 64)
RERANKS = ((50, 256), (1000, 16))
"""Documents, and tokens of each."""


def peer_of(threads: int, checkout: Path = ROOT, dtype: str = "float32") -> Peer:
    """The engine of a checkout with MiniLM, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.peers.selvage_peer", MINILM, dtype, str(MAX_TOKENS)]
    return Peer(command, threads=threads, checkout=checkout)


def products(peer: Peer) -> Turn:
    """The tokens a second that there would be if nothing but the linear layers' products took time."""
    tokens = float(peer.outcome("products"))
    return lambda: {"tokens/s": tokens / peer.run("products")["fastest"]}


def turn(peer: Peer, work: str, texts: int, tokens: int, asked: Mapping[str, Any]) -> Figures:
    """All texts at once."""
    told = peer.run(work, **asked)
    rate = {"tokens/s": tokens / told["seconds"], "ms": told["seconds"] * 1e3}
    return rate | {"CPU ms/text": told["cpu_seconds"] / texts * 1e3}


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Both checkouts in all cases."""
    with ExitStack() as cleanup:
        loading = {name: peer_of(options.threads, path) for name, path in options.checkouts.items()}
        running = {name: cleanup.enter_context(peer) for name, peer in loading.items()}
        alone, found = products(running[OURS]), dict[str, dict[str, Turn]]()
        for count in COUNTS:
            file = write_texts(token_ids((TOKENS,) * count), options.folder / f"{count}.npz")
            for jobs in dict.fromkeys((count, 1)):
                name = f"{count} x {TOKENS} tokens, {'one job' if jobs == 1 else 'single jobs'}"
                asked = {"file": file, "jobs": jobs}
                sides = {
                    side: partial(turn, peer, "embed", count, count * TOKENS, asked) for side, peer in running.items()
                }
                found[name] = {**sides, ALONE: alone}
        for documents, length in RERANKS:
            lengths = (QUERY, *(length,) * documents)
            asked = {"file": write_texts(token_ids(lengths), options.folder / f"{documents} documents.npz")}
            size = (documents, sum(lengths), asked)
            sides = {side: partial(turn, peer, "rerank", *size) for side, peer in running.items()}
            encoder = {"its encoder alone": partial(turn, running[OURS], "encoder", *size)}
            found[f"rerank of {documents:,} x {length} tokens"] = {**sides, **encoder, ALONE: alone}
        yield found

"""Callers among others: a rerank among many embeds, an interactive caller among bulk.

64 callers ask for embeddings of 128 tokens without a pause. One caller reranks 20 documents among them: of their key,
and where each has a key of its own; the figures are that caller's. Then one embeds 16 tokens, with and without a
priority, while those 64 and a rerank of 10,000 documents go on, which may take an hour each.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.benchmark import OURS, Options, as_found
from benchmarks.machine import ROOT
from benchmarks.rounds import Figures, Turn
from benchmarks.services import LASTING, Server, generated, lasting, pair

WHOSE, RATE, COMPARED = OURS, "tokens/s", ("p50 ms", "p99 ms")
PEERS: Mapping[str, Sequence[str]] = {}
CLIENTS = 64
KEYS = ",".join(f"key{number}" for number in range(CLIENTS))
RERANKS = {"requests": 3}
"""Not for so many seconds: of 65 keys one rerank may wait for a minute."""
finished = as_found


def beside(
    server: Server, workload: str, seconds: float, asked: Figures, others: Sequence[Mapping[str, Any]]
) -> Figures:
    """One caller while others call without a pause; the figures are its own."""
    with lasting(server, others):
        found = generated(server, workload, clients=1, seconds=seconds, warmup=1.0, **asked)
    return {name: found[name] for name in ("requests/s", "p50 ms", "p99 ms")}


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """One caller alone, and among others: all of one key, or each of its own."""
    with pair(ROOT, options.threads) as server:
        callers: dict[str, Any] = {"workload": "128-tokens", "clients": CLIENTS}
        rerank = partial(beside, server, "rerank-20", options.seconds)
        many = callers | {"priorities": "bulk", "deadline": LASTING}
        huge = {"workload": "rerank-10000", "clients": 1, "deadline": LASTING}
        interactive = partial(beside, server, "16-tokens", options.seconds)
        yield {
            "a rerank of 20 documents beside 64 callers, 128 tokens": {
                OURS: partial(rerank, RERANKS, [callers]),
                "65 keys": partial(rerank, RERANKS | {"keys": "own"}, [callers | {"keys": KEYS}]),
                "alone": partial(rerank, RERANKS, []),
            },
            "16 tokens beside 64 bulk callers and a rerank of 10,000 documents": {
                OURS: partial(interactive, {"priorities": "interactive"}, [many, huge]),
                "without priorities": partial(interactive, {}, [callers, huge]),
                "alone": partial(interactive, {}, []),
            },
        }

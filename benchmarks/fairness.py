"""Callers among others: a rerank among many embeds, an interactive caller among bulk.

64 callers ask for embeddings of 128 tokens without a pause. One caller reranks 20 documents among them: of their key,
and where each has a key of its own; the figures are that caller's. Then one embeds 16 tokens, with and without a
priority, while those 64 and a rerank of 10,000 documents go on, which may take an hour each.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.benchmark import OURS, Options, as_found
from benchmarks.machine import ROOT
from benchmarks.peers.process import free_port
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
    """One caller while others call without a pause; the figures are its own, but for how long a step takes."""
    with lasting(server, others):
        steps, busy = steps_of(server)
        found = generated(server, workload, clients=1, seconds=seconds, warmup=1.0, **asked)
        more, longer = steps_of(server)
    step = 1e3 * (longer - busy) / (more - steps)
    return {name: found[name] for name in ("requests/s", "p50 ms", "p99 ms")} | {"a step, ms": step}


def steps_of(server: Server) -> tuple[float, float]:
    """How many the worker has computed, and the seconds that they took."""
    with urlopen(f"http://{server.metrics}/metrics") as page:
        families = {each.name: each for each in text_string_to_metric_families(page.read().decode())}
    samples = {each.name: each.value for each in families["selvage_step_seconds"].samples if "le" not in each.labels}
    return samples["selvage_step_seconds_count"], samples["selvage_step_seconds_sum"]


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """One caller alone, and among others: all of one key, or each of its own."""
    with pair(ROOT, options.threads, f"127.0.0.1:{free_port()}") as server:
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

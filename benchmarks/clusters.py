"""Ray Data: 3,000 lognormal texts through 1 and 3 actors with an engine each, and 3 clients of both services.

An engine has one thread, in actors and without Ray; the services' worker has all. The start of actors, which load the
model, is told apart from what follows. Vectors of all files are compared.
"""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from benchmarks.benchmark import Options
from benchmarks.bulk import MEAN, QUICK, TEXTS, compared
from benchmarks.load.processor import CpuSeconds
from benchmarks.machine import ROOT
from benchmarks.peers.process import Peer
from benchmarks.rounds import Figures, Turn
from benchmarks.services import Server, pair
from benchmarks.workloads import MINILM, lognormal, text

WHOSE, RATE, COMPARED = "an engine without Ray", "texts/s", ("texts/s", "CPU ms/text")
PEERS = {"../.venv-clusters/ray": ("ray", "pyarrow")}


def told(peer: Peer, texts: int, side: str, server: Server | None = None, **asked: Any) -> Figures:
    """A run of a side."""
    pids = server.pids if server else {}
    before = {name: CpuSeconds.of(pid).whole for name, pid in pids.items()}
    seconds, whole, cpu, actors = map(float, peer.outcome(side, **asked))
    spent = {name: CpuSeconds.of(pid).whole - before[name] for name, pid in pids.items()} | {"actors": cpu}
    rate = {"texts/s": texts / seconds, "CPU ms/text": sum(spent.values()) / texts * 1e3, "s": seconds}
    parts = {f"{name}: CPU ms/text": each / texts * 1e3 for name, each in spent.items()} if server else {}
    return {**rate, **parts, "actors with work": actors, "s before and after": whole - seconds}


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """One case."""
    lengths, draw = lognormal(QUICK if options.quick else TEXTS, mean=MEAN), random.Random(1)
    lines = [json.dumps({"id": str(at), "text": text(MINILM, each, draw)}) for at, each in enumerate(lengths)]
    source, count = options.folder / "texts.jsonl", len(lines)
    source.write_text("\n".join(lines))
    python = ROOT / ".venv-clusters" / "ray" / "bin" / "python"
    with ExitStack() as cleanup:
        server = cleanup.enter_context(pair(ROOT, options.threads))
        peer = cleanup.enter_context(Peer([python, "-m", "benchmarks.peers.ray_peer"], threads=1))
        ray = partial(told, peer, count, "ray")
        engine = {"model": MINILM, "threads": 1, "truncate": True}
        sides: dict[str, Callable[..., Figures]] = {
            WHOSE: partial(told, peer, count, "engine"),
            "Ray Data, 1 actor": partial(ray, actors=1, options=engine),
            "Ray Data, 3 actors": partial(ray, actors=3, options=engine),
            "Ray Data, 3 clients": partial(
                ray, actors=3, options={"target": server.address, "max_tokens": 256, "truncate": True}, server=server
            ),
        }
        rows = list[Any]()
        yield {
            f"{count:,} texts, {sum(lengths):,} tokens": {
                name: partial(compared, partial(side, source=str(source)), str(options.folder / name), rows)
                for name, side in sides.items()
            }
        }

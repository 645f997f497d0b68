"""Daft: 3,000 lognormal texts through 1 and 3 processes with an engine each, by its own runner and on Ray.

An engine has one thread. What starting takes is told by a run of a few rows before, and taken off the rate. Vectors of
all files are compared with the first side's.
"""

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Options
from benchmarks.bulk import MEAN, QUICK, TEXTS, compared
from benchmarks.machine import ROOT
from benchmarks.peers.process import Peer
from benchmarks.rounds import Figures, Turn
from benchmarks.workloads import MINILM, lognormal, text

WHOSE, RATE, COMPARED = "Daft's own runner, 1 process", "texts/s", ("texts/s",)
PEERS = {"../.venv-clusters/daft": ("daft", "ray", "pyarrow")}
FEW = 12


def told(peer: Peer, texts: int, *, actors: int, source: str, target: str) -> Figures:
    """A run of a side."""
    few = Path(source).with_name("few.jsonl")
    few.write_text("\n".join(Path(source).read_text().splitlines()[:FEW]))
    run = partial(peer.outcome, "daft", actors=actors, target=target)
    (start,), (whole,) = run(source=str(few)).tolist(), run(source=source).tolist()
    return {"texts/s": texts / (whole - start), "s": whole - start, "s of few rows": start, "s in all": whole}


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """One case."""
    lengths, draw = lognormal(QUICK if options.quick else TEXTS, mean=MEAN), random.Random(1)
    lines = [json.dumps({"id": str(at), "text": text(MINILM, each, draw)}) for at, each in enumerate(lengths)]
    source, count = options.folder / "texts.jsonl", len(lines)
    source.write_text("\n".join(lines))
    python = ROOT / ".venv-clusters" / "daft" / "bin" / "python"
    with ExitStack() as cleanup:
        command = [python, "-m", "benchmarks.peers.daft_peer"]
        own, on_ray = (cleanup.enter_context(Peer([*command, each], threads=1)) for each in ("own", "ray"))
        sides = {
            WHOSE: partial(told, own, count, actors=1),
            "Daft's own runner, 3 processes": partial(told, own, count, actors=3),
            "Daft on Ray, 1 actor": partial(told, on_ray, count, actors=1),
            "Daft on Ray, 3 actors": partial(told, on_ray, count, actors=3),
        }
        rows = list[Any]()
        yield {
            f"{count:,} texts, {sum(lengths):,} tokens": {
                name: partial(compared, partial(side, source=str(source)), str(options.folder / name), rows)
                for name, side in sides.items()
            }
        }

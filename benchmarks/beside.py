"""One text of 16 tokens through `selvage.Engine`, alone and in a process that also uses PyTorch in other ways.

In libgomp each thread that computes has threads of its own, which spin while they wait. Where two of them share a core,
spinning is lost time: so each situation is measured with several numbers of spins, and as it is where PyTorch was
imported before selvage, which then cannot set the number. Every turn has a process of its own.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from benchmarks.benchmark import Options
from benchmarks.peers.process import SPIN, Peer
from benchmarks.rounds import Figures, Turn

COMPARED = ("ms",)
PEERS: Mapping[str, tuple[str, ...]] = {}
RATE = "texts/s"
SITUATIONS = (
    "alone",
    "after sentence-transformers",
    "beside a second engine",
    "beside busy sentence-transformers",
    "beside a second, busy engine",
)
OUR_SIDE, BEFORE = "spins as set", "10,000 spins"
SIDES = {OUR_SIDE: int(SPIN["GOMP_SPINCOUNT"]), BEFORE: 10_000, "PyTorch imported first": 0}


def turn(situation: str, spins: int, options: Options) -> Figures:
    """Starts a process in that situation and measures the text: median and fastest milliseconds, and CPU."""
    command = [sys.executable, "-m", "benchmarks.peers.beside_peer", situation, str(options.threads), str(spins)]
    with Peer(command, threads=options.threads) as peer:
        peer.run("embed", 0.1)
        times = peer.run("embed", options.seconds)
    spent = {"CPU ms": times["cpu_seconds"] * 1e3} if "busy" not in situation else {}
    return {"ms": times["seconds"] * 1e3, "ms at best": times["fastest"] * 1e3} | spent


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Yields a turn for each number of spins in each situation."""
    situations = SITUATIONS[:2] if options.quick else SITUATIONS
    yield {name: {side: partial(turn, name, spins, options) for side, spins in SIDES.items()} for name in situations}

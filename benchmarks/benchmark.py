"""What a benchmark is, and how each is run: everybody anew for every few rounds, rounds in turns, one JSON.

Where a process's memory lies is its luck, which all rounds in it share: so there are starts as well as rounds.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, cast

from benchmarks.machine import ROOT, commit, describe
from benchmarks.peers.process import versions_of
from benchmarks.rounds import Found, Turns, case, interleaved, shares

OURS = "selvage"
INFINITY = "infinity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`against`: paths of other checkouts, or `infinity`. `folder`: for files, lasts through all starts."""

    threads: int
    seconds: float
    against: Sequence[str]
    folder: Path
    quick: bool = False

    @property
    def checkouts(self) -> dict[str, Path]:
        """Ours, and others by the names of their folders and their commits."""
        paths = [Path(each).resolve() for each in self.against if each != INFINITY]
        return {OURS: ROOT} | {f"{each.name} at {commit(each)}": each for each in paths}


class Benchmark(Protocol):
    """A module: its docstring says what is compared, and `turns` starts everybody and ends them.

    `WHOSE`: the side that is ours. `RATE`: the figure that is held against products alone. `COMPARED`: figures of which
    ours over each other side is told. `PEERS`: packages whose versions are told, by the venv that has them. It may have
    `finished`: the sides of a case -> the same with what follows from all of them.
    """

    RATE: str
    COMPARED: Sequence[str]
    PEERS: Mapping[str, Sequence[str]]
    WHOSE: str

    @staticmethod
    def turns(options: Options) -> AbstractContextManager[Turns]:
        """Loaded, and compared where outputs can be."""


def run(name: str, options: Mapping[str, Any], rounds: int, starts: int) -> dict[str, Any]:
    """The result of a benchmark by its name. `options`: those of `Options` but the folder."""
    module = cast(Benchmark, import_module(f"benchmarks.{name}"))
    found: Found = {}
    with TemporaryDirectory() as folder:
        asked = Options(folder=Path(folder), **options)
        for number in range(starts):
            print(f"{name}: start {number + 1} of {starts}", file=sys.stderr, flush=True)
            with module.turns(asked) as turns:
                told = interleaved(turns, rounds)
            for where, sides in told.items():
                for side, those in sides.items():
                    found.setdefault(where, {}).setdefault(side, []).extend(those)
    finished = getattr(module, "finished", dict)
    cases = {where: finished(shares(sides, module.RATE)) for where, sides in found.items()}
    return {
        "benchmark": name,
        "says": (module.__doc__ or "").splitlines()[0],
        "settings": {key: value for key, value in options.items() if value} | {"rounds": rounds, "starts": starts},
        "machine": describe(),
        "peers": {venv: versions_of(venv, packages) for venv, packages in module.PEERS.items()},
        "cases": [case(where, sides, module.WHOSE, module.COMPARED) for where, sides in cases.items()],
    }

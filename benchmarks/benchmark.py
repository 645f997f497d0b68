"""The protocol of a benchmark, and how one is run: all sides start anew for every few rounds, and give one result.

Where a process's memory lies is chance and affects all its rounds, so there are starts as well as rounds.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, cast

from benchmarks.machine import ROOT, commit, describe
from benchmarks.peers.process import versions_of
from benchmarks.rounds import Measurements, Turns, case, interleaved, shares
from benchmarks.workloads import MINILM

OURS = "selvage"
INFINITY = "infinity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a benchmark. `against`: paths of other checkouts, or `infinity`. `folder`: files of all starts.

    `shape`: the model, where a benchmark has several. A benchmark adds to `absent` the sides that cannot run here, with
    their reasons.
    """

    threads: int
    seconds: float
    against: Sequence[str]
    folder: Path
    quick: bool = False
    shape: str = MINILM
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def checkouts(self) -> dict[str, Path]:
        """Our checkout, and the others by the names of their folders and their commits."""
        paths = [Path(path).resolve() for path in self.against if path != INFINITY]
        return {OURS: ROOT} | {f"{path.name} at {commit(path)}": path for path in paths}


class Benchmark(Protocol):
    """The protocol of a benchmark's module. Its docstring says what is compared; `turns` starts and ends all sides.

    `OUR_SIDE`: our side. `RATE`: the figure that is compared with products alone. `COMPARED`: figures whose
    ratio of ours to each other side is reported. `PEERS`: packages whose versions are reported, by their venv. An
    optional `finished` adds figures that follow from all sides of a case.
    """

    RATE: str
    COMPARED: Sequence[str]
    PEERS: Mapping[str, Sequence[str]]
    OUR_SIDE: str

    @staticmethod
    def turns(options: Options) -> AbstractContextManager[Turns]:
        """Starts the sides and compares their outputs where it can; yields the turns; ends the sides."""


def run(name: str, options: Mapping[str, Any], rounds: int, starts: int) -> dict[str, Any]:
    """Runs a benchmark by name and gives its result. `options`: those of `Options` except the folder."""
    module = cast(Benchmark, import_module(f"benchmarks.{name}"))
    measured: Measurements = {}
    with TemporaryDirectory() as folder:
        all_options = Options(folder=Path(folder), **options)
        for number in range(starts):
            print(f"{name}: start {number + 1} of {starts}", file=sys.stderr, flush=True)
            with module.turns(all_options) as turns:
                figures = interleaved(turns, rounds)
            for case_name, sides in figures.items():
                for side, rounds_of_side in sides.items():
                    measured.setdefault(case_name, {}).setdefault(side, []).extend(rounds_of_side)
    finished = getattr(module, "finished", dict)
    cases = {case_name: finished(shares(sides, module.RATE)) for case_name, sides in measured.items()}
    return {
        "benchmark": name,
        "says": (module.__doc__ or "").splitlines()[0],
        "settings": {key: value for key, value in options.items() if value} | {"rounds": rounds, "starts": starts},
        "machine": describe(),
        "absent": all_options.absent,
        "peers": {venv: versions_of(venv, packages) for venv, packages in module.PEERS.items()},
        "cases": [case(case_name, sides, module.OUR_SIDE, module.COMPARED) for case_name, sides in cases.items()],
    }

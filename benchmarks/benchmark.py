"""The protocol of a benchmark, and how one is run: sides in turns, and their figures.

Every side has its turn once a round, so that a machine that slows down slows all of them; every other round goes
backwards, so that nobody always follows the same one. Figures are medians with quartiles, and ratios round by round.
Where a process's memory lies is chance and affects all its rounds, so there are starts as well as rounds.
"""

import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.machine import ROOT, commit, describe
from benchmarks.peers.process import versions_of
from benchmarks.workloads import MINILM

OURS = "selvage"
INFINITY = "infinity"
Figures = Mapping[str, float]
"""A turn's figures, by names that have the unit."""
Turn = Callable[[], Figures]
Turns = Mapping[str, Mapping[str, Turn]]
"""Turns by case, then by side."""
Measurements = dict[str, dict[str, list[Figures]]]
"""Figures of all rounds, by case, then by side."""
PAUSE = 0.05
"""Seconds before a turn, so that one side's spinning threads are asleep before the next begins."""
ALONE, SHARE = "products alone", "% of products alone"
"""The side that is a bound (see `products.py`), and the figure of how near another side comes to it."""
FORMATS = ("float32", "bfloat16", "int8")
"""Number formats, as names of sides have them; a side without one computes in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a benchmark. `against`: paths of other checkouts, or `infinity`. `folder`: files of all starts.

    `shape` and `row`: the model, or the row, where a benchmark has several. A benchmark adds to `absent` the sides that
    cannot run here, with their reasons; to `settings` and `notes` what its result has beside the settings, and beside
    all else.
    """

    threads: int
    seconds: float
    against: Sequence[str]
    folder: Path
    quick: bool = False
    shape: str = MINILM
    row: str = ""
    absent: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def checkouts(self) -> dict[str, Path]:
        """Our checkout, and the others by the names of their folders and their commits."""
        paths = [Path(path).resolve() for path in self.against if path != INFINITY]
        return {OURS: ROOT} | {f"{path.name} at {commit(path)}": path for path in paths}


class Benchmark(Protocol):
    """The protocol of a benchmark's module. Its docstring says what is compared; `turns` starts and ends all sides.

    `OUR_SIDE`: our side. `RATE`: the figure that is compared with products alone. `COMPARED`: figures whose
    ratio of ours to each other side is reported. `PEERS`, where it has any: packages whose versions are reported, by
    their venv.
    """

    RATE: str
    COMPARED: Sequence[str]
    OUR_SIDE: str

    @staticmethod
    def turns(options: Options) -> AbstractContextManager[Turns]:
        """Starts the sides and compares their outputs where it can; yields the turns; ends the sides."""


def run(module: Benchmark, name: str, options: Mapping[str, Any], rounds: int, starts: int) -> dict[str, Any]:
    """Runs a benchmark and gives its result, by this name. `options`: those of `Options` except the folder."""
    measured: Measurements = {}
    with TemporaryDirectory() as folder:
        all_options = Options(folder=Path(folder), **options)
        for number in range(starts):
            print(f"{name}: start {number + 1} of {starts}", file=sys.stderr, flush=True)
            with module.turns(all_options) as turns:
                figures = interleaved(turns, rounds, module.OUR_SIDE, all_options.absent)
            for case_name, sides in figures.items():
                for side, rounds_of_side in sides.items():
                    measured.setdefault(case_name, {}).setdefault(side, []).extend(rounds_of_side)
    whole = {
        case_name: {side: figures for side, figures in sides.items() if len(figures) == rounds * starts}
        for case_name, sides in measured.items()
    }
    cases = {case_name: shares(sides, module.RATE) for case_name, sides in whole.items()}
    settings = {key: value for key, value in options.items() if value} | {"rounds": rounds, "starts": starts}
    peers: Mapping[str, Sequence[str]] = getattr(module, "PEERS", {})
    return {
        "benchmark": name,
        "says": (module.__doc__ or "").splitlines()[0],
        "settings": settings | all_options.settings,
        "machine": describe(),
        "absent": all_options.absent,
        "peers": {venv: versions_of(venv, packages) for venv, packages in peers.items()},
        **all_options.notes,
        "cases": [case(case_name, sides, module.OUR_SIDE, module.COMPARED) for case_name, sides in cases.items()],
    }


def interleaved(turns: Turns, rounds: int, ours: str, absent: dict[str, str], *, pause: float = PAUSE) -> Measurements:
    """Measures every side in every case once a round; prints the figures on standard error as they come.

    Another product's turn that exits leaves its side out of that case, and its reason in `absent`.
    """
    measured: Measurements = {case: {side: [] for side in sides} for case, sides in turns.items()}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for case, sides in measured.items():
            for side in list(sides)[:: -1 if number % 2 else 1]:
                time.sleep(pause)
                try:
                    sides[side].append(figures := turns[case][side]())
                except SystemExit as error:
                    if side == ours or not isinstance(error.code, str):
                        raise
                    absent[f"{side}, {case}"] = error.code
                    del sides[side]
                    continue
                line = ", ".join(f"{name} {value:.4g}" for name, value in list(figures.items())[:3])
                print(f"  {case}, {side}: {line}", file=sys.stderr, flush=True)
    return measured


def number_format(side: str) -> str:
    """Gives the number format of a side, by its name."""
    return next((name for name in FORMATS if name in side), FORMATS[0])


def counterpart(side: str, sides: Collection[str], ours: str) -> str:
    """Gives our side that another one is compared with: that in its number format if there is one, else `ours`."""
    same = ours.replace(FORMATS[0], number_format(side))
    return ours if same == side or same not in sides else same


def digits_of(figure: str) -> int:
    """Gives the digits that a figure is kept with: what is near 1 needs more."""
    return 6 if "cosine" in figure else 4


def spread(values: Sequence[float], digits: int = 4) -> dict[str, float]:
    """Computes median and quartiles, to four digits by default."""
    quartiles = np.quantile(np.asarray(values, dtype=float), (0.5, 0.25, 0.75))
    named = zip(("median", "lower", "upper"), quartiles, strict=True)
    return {name: float(f"{quantile:.{digits}g}") for name, quantile in named}


def shares(sides: Mapping[str, Sequence[Figures]], rate: str) -> dict[str, Sequence[Figures]]:
    """Adds each side's rate as a share of products alone in its number format, round by round."""
    with_shares: dict[str, Sequence[Figures]] = {}
    for side, rounds in sides.items():
        dtype = number_format(side)
        limits = sides.get(ALONE if dtype == FORMATS[0] else f"{ALONE}, {dtype}")
        with_shares[side] = rounds
        if limits is not None and ALONE not in side and all(rate in figures for figures in rounds):
            pairs = zip(rounds, limits, strict=True)
            with_shares[side] = [{**figures, SHARE: 100 * figures[rate] / limit[rate]} for figures, limit in pairs]
    return with_shares


def case(name: str, sides: Mapping[str, Sequence[Figures]], ours: str, compared: Sequence[str]) -> dict[str, Any]:
    """Makes a case's JSON: every side's figures, and ours over each other side's, by ratios within a round.

    Another product's side is compared with ours in its number format. A figure that a side lacks in some round, or that
    is 0 there, has no ratio.
    """
    over: dict[str, dict[str, dict[str, float]]] = {}
    for side, rounds in sides.items():
        our_rounds = sides[counterpart(side, sides, ours)]
        both = [figure for figure in compared if all(figures.get(figure) for figures in (*rounds, *our_rounds))]
        if side != ours and ALONE not in side and both:
            pairs = list(zip(our_rounds, rounds, strict=True))
            over[side] = {
                figure: spread([ours_now[figure] / theirs_now[figure] for ours_now, theirs_now in pairs])
                for figure in both
            }
    spreads = {
        side: {
            figure: spread([figures[figure] for figures in rounds if figure in figures], digits_of(figure))
            for figure in dict.fromkeys(chain(*rounds))
        }
        for side, rounds in sides.items()
    }
    return {"case": name, "ours": ours, "sides": spreads, "ours_over": over}


def cosines(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Computes the cosines of rows [N, H] pair by pair in float64, [N]."""
    left, right = (vectors.astype(np.float64) for vectors in (left, right))
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    angles: npt.NDArray[np.float64] = (left * right).sum(axis=1) / lengths
    return angles

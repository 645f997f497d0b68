"""Sides in turns, and what came of it: medians with quartiles, and each round's own ratio. Knows no side.

Every side has its turn once a round, so that a machine that slows down slows all of them; every other round goes
backwards, so that nobody always follows the same one.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

Figures = Mapping[str, float]
"""What a turn told, by names that have the unit."""
Turn = Callable[[], Figures]
Turns = Mapping[str, Mapping[str, Turn]]
"""By case, then by side."""
Found = dict[str, dict[str, list[Figures]]]
"""The same of what every round told."""
PAUSE = 0.05
"""Seconds before a turn, so that one side's spinning threads are asleep before the next begins."""
ALONE, SHARE = "products alone", "% of products alone"
"""The side that nothing could beat (see `products.py`), and what others reach of it."""


def interleaved(turns: Turns, rounds: int, *, pause: float = PAUSE) -> Found:
    """The figures of every side in every case, one a round; tells each on standard error as it comes."""
    found: Found = {case: {side: [] for side in sides} for case, sides in turns.items()}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for case, sides in turns.items():
            for side in list(sides)[:: -1 if number % 2 else 1]:
                time.sleep(pause)
                found[case][side].append(figures := sides[side]())
                told = ", ".join(f"{name} {value:.4g}" for name, value in list(figures.items())[:3])
                print(f"  {case}, {side}: {told}", file=sys.stderr, flush=True)
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles, to four digits."""
    quartiles = np.quantile(np.asarray(values, dtype=float), (0.5, 0.25, 0.75))
    return {name: float(f"{each:.4g}") for name, each in zip(("median", "lower", "upper"), quartiles, strict=True)}


def shares(sides: Mapping[str, Sequence[Figures]], rate: str) -> dict[str, Sequence[Figures]]:
    """With the share that each side's rate is of products alone in its number format, round by round."""
    told: dict[str, Sequence[Figures]] = {}
    for side, rounds in sides.items():
        most = sides.get(f"{ALONE}, bfloat16" if "bfloat16" in side else ALONE)
        if most is None or ALONE in side or not all(rate in each for each in rounds):
            told[side] = rounds
        else:
            told[side] = [{**own, SHARE: 100 * own[rate] / at[rate]} for own, at in zip(rounds, most, strict=True)]
    return told


def case(name: str, sides: Mapping[str, Sequence[Figures]], ours: str, compared: Sequence[str]) -> dict[str, Any]:
    """For JSON: every side's figures, and ours over each other side's, round by round: both met the same machine.

    A figure that a side lacks in some round, or that is 0 there, has no ratio.
    """
    over: dict[str, dict[str, dict[str, float]]] = {}
    for side, rounds in sides.items():
        both = [figure for figure in compared if all(each.get(figure) for each in (*rounds, *sides[ours]))]
        if side != ours and ALONE not in side and both:
            pairs = list(zip(sides[ours], rounds, strict=True))
            over[side] = {figure: spread([own[figure] / their[figure] for own, their in pairs]) for figure in both}
    told = {
        side: {
            figure: spread([each[figure] for each in rounds if figure in each])
            for figure in dict.fromkeys(chain(*rounds))
        }
        for side, rounds in sides.items()
    }
    return {"case": name, "ours": ours, "sides": told, "ours_over": over}

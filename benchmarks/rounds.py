"""Rounds in which all sides take turns, and their figures: medians with quartiles, and ratios round by round.

Every side has its turn once a round, so that a machine that slows down slows all of them; every other round goes
backwards, so that nobody always follows the same one.
"""

import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

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


def interleaved(turns: Turns, rounds: int, *, pause: float = PAUSE) -> Measurements:
    """Measures every side in every case once a round; prints the figures on standard error as they come."""
    measured: Measurements = {case: {side: [] for side in sides} for case, sides in turns.items()}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for case, sides in turns.items():
            for side in list(sides)[:: -1 if number % 2 else 1]:
                time.sleep(pause)
                measured[case][side].append(figures := sides[side]())
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


def spread(values: Sequence[float], digits: int = 4) -> dict[str, float]:
    """Computes median and quartiles, to four digits by default."""
    quartiles = np.quantile(np.asarray(values, dtype=float), (0.5, 0.25, 0.75))
    return {
        name: float(f"{quantile:.{digits}g}")
        for name, quantile in zip(("median", "lower", "upper"), quartiles, strict=True)
    }


def digits_of(figure: str) -> int:
    """Gives the digits that a figure is kept with: what is near 1 needs more."""
    return 6 if "cosine" in figure else 4


def shares(sides: Mapping[str, Sequence[Figures]], rate: str) -> dict[str, Sequence[Figures]]:
    """Adds each side's rate as a share of products alone in its number format, round by round."""
    with_shares: dict[str, Sequence[Figures]] = {}
    for side, rounds in sides.items():
        dtype = number_format(side)
        limits = sides.get(ALONE if dtype == FORMATS[0] else f"{ALONE}, {dtype}")
        if limits is None or ALONE in side or not all(rate in figures for figures in rounds):
            with_shares[side] = rounds
        else:
            with_shares[side] = [
                {**figures, SHARE: 100 * figures[rate] / limit[rate]}
                for figures, limit in zip(rounds, limits, strict=True)
            ]
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

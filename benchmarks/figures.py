"""Numbers as the results file has them: each with its unit, repeated ones with their spread. numpy only."""

from collections.abc import Sequence
from typing import Any

import numpy as np

SAME = 0.05
"""A ratio this close to 1 is no difference."""


def count(value: int) -> dict[str, Any]:
    """Something counted: tokens, bytes, reads."""
    return {"unit": "count", "value": int(value)}


def seconds(rounds: Sequence[float]) -> dict[str, Any]:
    """One figure a round."""
    return spread(rounds, "seconds")


def spread(rounds: Sequence[float], unit: str) -> dict[str, Any]:
    """Median and quartiles of one figure a round, the rounds in their order; six significant digits."""
    lower, median, upper = np.quantile(rounds, (0.25, 0.5, 0.75))
    return {
        "unit": unit,
        "median": _short(median),
        "lower_quartile": _short(lower),
        "upper_quartile": _short(upper),
        "rounds": [_short(each) for each in rounds],
    }


def against(ours: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """How many times less of something (seconds) ours takes than the other, round by round, and what that says.

    The ratio is the median of each round's own: a machine that slows down for a while slows both sides of a round,
    and the ratio of two medians may be one of a fast minute and a slow one.

    `gains`: ours takes less. `loses`: it takes more. `nothing`: the ratio is within 5 % of 1. `unclear`: it is not,
    but its quartiles lie on both sides of 1.
    """
    ratios = np.asarray(other, dtype=np.float64) / np.maximum(np.asarray(ours, dtype=np.float64), 1e-12)
    lower, median, upper = (float(each) for each in np.quantile(ratios, (0.25, 0.5, 0.75)))
    says = "gains" if median > 1 else "loses"
    if abs(median - 1) <= SAME:
        says = "nothing"
    elif lower <= 1 <= upper:
        says = "unclear"
    return {
        "ratio": round(median, 3),
        "lower_quartile": round(lower, 3),
        "upper_quartile": round(upper, 3),
        "verdict": says,
    }


def _short(value: float) -> float:
    return float(f"{value:.6g}")

"""The ratios that result files hold: what is quoted of a benchmark, since seconds are of one machine on one day."""

from collections.abc import Callable, Mapping
from typing import Any

Ratios = dict[str, float]
Result = Mapping[str, Any]


def of(result: Result) -> Ratios:
    """By what they compare. Raises KeyError for a benchmark that is not among `KNOWN`."""
    return KNOWN[result["benchmark"]](result)


def _offline(result: Result) -> Ratios:
    return {
        f"{case['mix']}: {own} over {other}": times
        for case in result["cases"]
        for own, others in case["is_faster_by"].items()
        for other, times in others.items()
    }


def _maxsim(result: Result) -> Ratios:
    return {
        f"{case['documents']:,} documents: selvage over {name}": side["median_seconds"] / own["median_seconds"]
        for case in result["cases"]
        if (own := case["sides"]["selvage"])
        for name, side in case["sides"].items()
        if side is not own
    }


def _infinity(result: Result) -> Ratios:
    return {
        f"{case['case']}: selvage over {name}, {over['figure']}": over["ratio"]
        for case in result["cases"]
        for name, over in case["ours_over"].items()
    }


def _ablations(result: Result) -> Ratios:
    return {
        f"({letter}) {case['case']}: {case['ours']} over {name}": figures["time"]["ratio"]
        for letter, ablation in result["ablations"].items()
        for case in ablation["cases"]
        for name, figures in case["against"].items()
    }


KNOWN: dict[str, Callable[[Result], Ratios]] = {
    "offline-cpu": _offline,
    "maxsim-cpu": _maxsim,
    "infinity-cpu": _infinity,
    "ablations-cpu": _ablations,
}

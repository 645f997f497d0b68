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
        f"{case['mix']}: {own} over {other}": figures["ratio"]
        for case in result["cases"]
        for own, others in case["against"].items()
        for other, figures in others.items()
        if "selvage" not in other
    }


def _maxsim(result: Result) -> Ratios:
    return {
        f"{case['documents']:,} documents: selvage over {name}": figures["ratio"]
        for case in result["cases"]
        for name, figures in case["against"].items()
        if "selvage" not in name
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

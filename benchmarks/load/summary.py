"""Several rounds of one load as figures: medians, the spread of requests/s, and every round."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.load.outcome import Outcome


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """For JSON. CPU seconds are told by kind of process: "client 0" and "client 1" together are "clients"."""
    rounds = [outcome.figures() for outcome in outcomes]
    rates = [each["requests_per_second"] for each in rounds]
    return {
        "requests_per_second": round(median(rates), 2),
        "spread": round((max(rates) - min(rates)) / median(rates), 3) if median(rates) else 0.0,
        "tokens_per_second": round(median(each["tokens_per_second"] for each in rounds)),
        "latency_ms": _medians([each["latency_ms"] for each in rounds]),
        "cpu_seconds_per_second": _medians([_per_second(each) for each in rounds]),
        "errors": sum(sum(each["errors"].values()) for each in rounds),
        "rounds": rounds,
    }


def _per_second(figures: Mapping[str, Any]) -> dict[str, float]:
    """CPU seconds a second of wall time, by kind of process."""
    spent: dict[str, float] = {}
    for name, seconds in figures["cpu_seconds"].items():
        kind = _kind(name)
        spent[kind] = spent.get(kind, 0.0) + seconds / figures["window_seconds"]
    return spent


def _kind(name: str) -> str:
    """Numbered processes are one of several."""
    kind, _, number = name.rpartition(" ")
    return f"{kind}s" if number.isdigit() else name


def _medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """By name; a round without an answer has no latencies, and counts only where there are some."""
    names = dict.fromkeys(name for each in rounds for name in each)
    return {name: round(median(each[name] for each in rounds if name in each), 3) for name in names}

"""Outcomes of loads that nobody sent."""

from collections.abc import Mapping

from benchmarks.load.outcome import Outcome
from benchmarks.load.tally import OK, Reply, Tally


def outcome_of(requests: int, seconds: float, cpu_seconds: Mapping[str, float], *, errors: int = 0) -> Outcome:
    """So many answers of ten tokens, each after 0.1 s."""
    tally = Tally(["all"])
    for _ in range(requests):
        tally.count(0, Reply(status=OK, body=b"12"), 0.1, 1.0)
    for _ in range(errors):
        tally.count(0, Reply(status="UNAVAILABLE"), 0.1, 1.0)
    return Outcome(seconds=seconds, window=seconds, tally=tally, tokens={0: 10}, cpu_seconds=cpu_seconds)

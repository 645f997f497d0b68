"""Loads that take turns, and what several rounds of one come to."""

from collections.abc import Mapping
from typing import Any

import pytest
from outcomes import outcome_of

from benchmarks.load import case
from benchmarks.load.case import Case, best, measured
from benchmarks.load.generator import LoadFailed
from benchmarks.load.outcome import Outcome
from benchmarks.load.pattern import Closed
from benchmarks.load.plan import Plan, Prepared
from benchmarks.load.summary import summary
from benchmarks.load.target import EMBED, GrpcAddress


def case_of(name: str, pid: int) -> Case:
    plan = Plan(
        address=GrpcAddress(servers=(name,), method=EMBED),
        requests=(Prepared(body=name.encode()),),
        pattern=Closed(clients=1, seconds=1),
    )
    return Case(name=name, plan=plan, watch={"server": pid})


async def test_cases_take_turns_and_learn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A B A B; from the second round on a request's tokens are known, and nobody is asked again."""
    runs: list[tuple[str, bool, int | None, Mapping[str, int]]] = []

    async def generate(plan: Plan, *, watch: Mapping[str, int], title: str) -> Outcome:
        runs.append((title, plan.learn, plan.requests[0].tokens, watch))
        return outcome_of(1, 1.0, {})

    monkeypatch.setattr(case, "generate", generate)
    outcomes = await measured([case_of("A", 1), case_of("B", 2)], 2, "load")
    assert runs == [
        ("load: A, round 1 of 2", True, None, {"server": 1}),
        ("load: B, round 1 of 2", True, None, {"server": 2}),
        ("load: A, round 2 of 2", False, 10, {"server": 1}),
        ("load: B, round 2 of 2", False, 10, {"server": 2}),
    ]
    assert {name: len(each) for name, each in outcomes.items()} == {"A": 2, "B": 2}


async def test_a_case_without_an_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One round with an answer is enough; none at all has no latency to tell."""
    answers = iter([1, 1, 0, 1, 0, 0])

    async def generate(plan: Plan, *, watch: Mapping[str, int], title: str) -> Outcome:
        return outcome_of(next(answers), 1.0, {})

    monkeypatch.setattr(case, "generate", generate)
    with pytest.raises(LoadFailed, match="load: C: no answer in its time"):
        await measured([case_of("A", 1), case_of("B", 2), case_of("C", 3)], 2, "load")


def test_a_summary_has_medians_and_every_round() -> None:
    """Rates and CPU seconds a second; numbered processes are added up, others keep their name."""
    spent = {"client 0": 1.0, "client 1": 3.0, "worker": 2.0}
    found: dict[str, Any] = summary([outcome_of(requests, 2.0, spent, errors=1) for requests in (40, 20, 30)])
    assert (found["requests_per_second"], found["tokens_per_second"], found["errors"]) == (15, 150, 3)
    assert found["spread"] == pytest.approx(10 / 15, abs=1e-3)
    assert found["cpu_seconds_per_second"] == {"clients": 2.0, "worker": 1.0}
    assert found["latency_ms"]["p50"] == pytest.approx(100, rel=1e-3)
    assert [each["requests"] for each in found["rounds"]] == [40, 20, 30]


def test_a_round_without_an_answer_has_no_latency() -> None:
    """It counts as none a second, and leaves the latencies to the others."""
    found: dict[str, Any] = summary([outcome_of(requests, 2.0, {}) for requests in (0, 20, 30)])
    assert found["requests_per_second"] == 10
    assert found["latency_ms"]["p50"] == pytest.approx(100, rel=1e-3)


def test_the_best_round_has_the_highest_rate() -> None:
    """Not the most answers."""
    rounds = [outcome_of(40, 4.0, {}), outcome_of(30, 2.0, {})]
    assert best(rounds) is rounds[1]

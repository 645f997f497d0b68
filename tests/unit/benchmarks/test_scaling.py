"""The arithmetic of the tables of sizing, on costs that are known."""

from typing import Any

import pytest

from benchmarks import render as page
from benchmarks.render import CPU, GRPC, LISTS, LONG, LONG_LISTS, ROWS, SHORT, FrontendCost

COST = FrontendCost(request=0.5, text=0.02, token=0.001)


def result() -> dict[str, Any]:
    """A result of `frontends` by this cost."""
    cases = {case: COST.milliseconds(texts, texts * tokens) for case, texts, tokens in (
        (SHORT, 1, 16), (LONG, 1, 128), (LISTS, 32, 16), (LONG_LISTS, 32, 128), (ROWS, 56, 254),
    )}  # fmt: skip
    sides = {
        case: {f"frontend: {CPU}": cost, f"worker: {CPU}": 0.1, f"clients: {CPU}": 0.2, "p50 ms": 4.0, "p99 ms": 9.0}
        | {"requests/s": 100.0}
        for case, cost in cases.items()
    }
    sides["sizes"] = {"float32 rows: bytes/token": 1536.0}
    rendered = [{"case": case, "sides": dict.fromkeys((GRPC, "HTTP"), spreads(row))} for case, row in sides.items()]
    return {"machine": {"processor": "a processor", "cores": 2, "commit": "abc"}, "cases": rendered}


def spreads(figures: dict[str, float]) -> dict[str, dict[str, float]]:
    return {name: {"median": value} for name, value in figures.items()}


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "read", {"frontends": result()}.get)


def test_costs_are_solved_from_three_requests() -> None:
    """By request, by text and by token."""
    solved = page.frontend_cost()
    assert (solved.request, solved.text, solved.token) == pytest.approx((0.5, 0.02, 0.001))


def test_frontends_follow_from_speed_and_size_of_requests() -> None:
    """100,000 tokens/s are 781 requests/s of 128 tokens, of 0.648 ms each, on cores that are used to 70 %."""
    assert page.frontends_needed(100_000, 1, 128, COST) == pytest.approx(781.25 * 0.648e-3 / 0.7)
    assert page.frontends_needed(100_000, 32, 128, COST) < page.frontends_needed(100_000, 1, 128, COST)


def test_every_table_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing was measured it says so."""
    names = ("scaling-costs", "scaling-needed")
    assert min(page.block(name).count("\n|") for name in names) > 3
    monkeypatch.setattr(page, "read", lambda name: {})
    assert {page.block(name) for name in names} == {page.NO_RESULT}

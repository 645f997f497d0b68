"""Where the cores' time goes while a published row is measured."""

from typing import Any

from benchmarks.published.page import PARTS, parts, shares
from benchmarks.published.row import Row
from benchmarks.published.rows import rows


def figures(**medians: float) -> dict[str, Any]:
    return {name.replace("_", " "): {"median": value} for name, value in medians.items()}


OURS = figures(**{
    "requests/s": 10.0,
    "% of products alone": 60.0,
    "worker: CPU ms/request": 160.0,
    "server: CPU ms/request": 170.0,
    "clients: CPU ms/request": 4.0,
})  # fmt: skip


def test_the_parts_of_two_cores_are_all_of_their_time() -> None:
    """A request has 200 ms of two cores: 120 of products, 40 more of the worker, 10 of others, 4 of clients."""
    found = parts(OURS, 2)
    assert {name: round(value, 9) for name, value in found.items()} == dict(zip(PARTS, (60, 20, 5, 2, 13), strict=True))


def test_a_side_without_products_or_with_shared_ones_has_no_parts() -> None:
    assert parts(OURS | figures(**{"% of products alone": 283.0}), 2) == {}
    assert parts({name: spread for name, spread in OURS.items() if not name.startswith("worker")}, 2) == {}
    assert parts({}, 2) == {}


def lines(row: Row) -> list[list[str]]:
    theirs = {name.replace("worker", "VLLM::Worker"): spread for name, spread in OURS.items()}
    case = {"case": "4 clients", "ours": "selvage", "sides": {"selvage": OURS, "vLLM": theirs}}
    return list(shares(row, {"cases": [case], "settings": {"threads": 2}}, {"4 clients": "vLLM"}))


def test_a_row_about_rates_has_a_line_a_case_and_one_about_latencies_none() -> None:
    assert lines(rows()["clients"]) == [["clients, 4 clients", "60 / 60", "20 / 20", "5 / 5", "2 / 2", "13 / 13"]]
    assert lines(rows()["short-beside-long"]) == []

"""Where the time of all cores goes while a row is measured: what products alone would take, and what takes the rest."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.published.row import OURS, VLLM, Row
from benchmarks.result import number
from benchmarks.rounds import SHARE

CPU = ": CPU ms/request"
WORKERS = {OURS: f"worker{CPU}", VLLM: f"VLLM::Worker{CPU}"}
"""The figure of the process that computes, by server."""
PARTS = ("products", "rest of the worker", "other processes", "clients", "idle")


def shares(row: Row, result: Mapping[str, Any], best: Mapping[str, str]) -> Iterator[list[str]]:
    """Yields a line for each case of a row about rates: its parts as percent of all cores' time, ours / vLLM's.

    `best`: the side of vLLM that is shown, by case. Cases with texts that begin alike are left out, since there
    products are not made once for each token.
    """
    for case in result.get("cases", ()):
        sides = (case["ours"], best.get(case["case"], ""))
        percents = [parts(case["sides"].get(side, {}), result["settings"]["threads"]) for side in sides]
        if not row.latency and all(percents):
            cells = [" / ".join(number(of_side[name]) for of_side in percents) for name in PARTS]
            yield [f"{row.name}, {case['case']}", *cells]


def parts(figures: Mapping[str, Any], cores: int) -> dict[str, float]:
    """Percent of the time of `cores` cores that each part takes; empty where figures lack one.

    `figures`: of one side, with medians. Products take as long as they would take alone, so the rest of the worker has
    also what makes them slower there.
    """
    medians = {name: spread["median"] for name, spread in figures.items()}
    worker = next((medians[name] for name in WORKERS.values() if name in medians), None)
    if worker is None or not medians.get("requests/s") or not 0 < medians.get(SHARE, 0.0) <= 100:
        return {}
    whole = 1000 * cores / medians["requests/s"]
    server, clients = medians[f"server{CPU}"], medians[f"clients{CPU}"]
    products = medians[SHARE] / 100 * whole
    taken = (products, worker - products, server - worker, clients, whole - server - clients)
    return {name: 100 * milliseconds / whole for name, milliseconds in zip(PARTS, taken, strict=True)}

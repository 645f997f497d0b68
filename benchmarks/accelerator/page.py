"""The tables of docs/accelerator.md from the results: floors, and goals."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.result import number, read, table
from benchmarks.roofline import Device, Floor, floor, shape
from benchmarks.workloads import named

NOTHING = "nothing yet"
EARLIER = "h100/accelerator"
"""The result of an earlier device, which stands in where a newer one has none."""


def floors() -> str:
    """Renders the least that each workload with a goal takes by a device's measured limits. Raises KeyError without."""
    result = read("accelerator")
    device, workloads, rows = Device(**result["limits"]), named("full"), []
    for workload in (workloads[name] for name in dict.fromkeys(goal["workload"] for goal in _goals())):
        for count in workload.in_flight:
            least = floor(shape(workload.model), workload, count, device)
            parts = [number(1e9 * seconds) for seconds in asdict(least).values()]
            row = fastest(result, "rows", workload.name, count)
            reached = f"{number(100 * row['tokens/s'] / least.tokens_per_second)} %" if row else NOTHING
            rows.append([f"{workload.name}, {count}", *parts, number(least.tokens_per_second), least.binds, reached])
    heads = ["workload, in flight", *Floor.__annotations__, "tokens/s at most", "bound by", "reached"]
    rates = (
        f"{device.flops / 1e12:.0f} TFLOP/s, {device.memory / 1e12:.2g} TB/s, to the host {device.link / 1e9:.0f} GB/s"
    )
    where = f"measured at commit {result['machine']['commit']}"
    return f"Of {device.name} ({rates}): {where}.\n\n{table(heads, rows)}"


def goals() -> str:
    """Renders what others published, what is wanted, and what was reached, on an earlier device where that is all."""
    result, earlier, rows = read("accelerator"), read(EARLIER), []
    for goal in _goals():
        name, count = goal["workload"], goal["in flight"]
        is_older = earlier and not any(row["workload"] == name for row in result["rows"])
        device, workload = Device(**(earlier if is_older else result)["limits"]), named("full")[name]
        limit = floor(shape(workload.model), workload, count, device).tokens_per_second
        reached = [
            _rates(fastest(result, section, name, count))
            or _rates(fastest(earlier, section, name, count), " (H100)")
            or NOTHING
            for section in ("rows", "services")
        ]
        rows.append([f"{name}, {count}", goal["vLLM"], f"{limit:,.0f} tok/s", goal["goal"], *reached])
    heads = ["workload, in flight", "vLLM", "limit", "goal", "our engine", "our services"]
    return "\n\n".join([*map(_commits, filter(None, (result, earlier))), table(heads, rows)])


def _goals() -> list[dict[str, Any]]:
    goals: list[dict[str, Any]] = json.loads((ROOT / "benchmarks" / "goals.json").read_text())
    return goals


def fastest(result: Mapping[str, Any], section: str, workload: str, in_flight: int) -> dict[str, Any]:
    """Finds the fastest row of a workload, but for layers as they were written; empty where nothing was measured."""
    rows = [row for row in result.get(section, ()) if row["workload"] == workload and row.get("in flight") == in_flight]
    serving = [row for row in rows if row.get("encoder") != "eager"]
    return max(serving or rows, key=lambda row: float(row["tokens/s"]), default={})


def _rates(row: Mapping[str, Any], device: str = "") -> str:
    if not row:
        return ""
    rate, middle, late = (number(row[name]) for name in ("tokens/s", "p50 ms", "p99 ms"))
    return f"{rate} tok/s, p50 {middle} ms, p99 {late} ms{device}"


def _commits(result: Mapping[str, Any]) -> str:
    """States of which commits the parts of a result are."""
    parts = [row for row in result["parts"] if not {"error", "skipped"} & set(row)]
    return f"{result['limits']['name']}: at commits {', '.join(dict.fromkeys(row['commit'] for row in parts))}."

"""The table of docs/accelerator.md from the results of two devices: goals, limits, and what was reached."""

import json
from collections.abc import Mapping
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.result import number, read, table
from benchmarks.roofline import Device, floor, shape
from benchmarks.workloads import named

EARLIER = "h100/accelerator"
"""The result of an earlier device, which stands in where a newer one has none."""
HEADS = ("workload, in flight", "vLLM", "limit", "goal", "our engine", "of the limit", "our services")


def goals() -> str:
    """Renders what others published, what is wanted, and what was reached, on an earlier device where that is all.

    Raises KeyError where nothing was measured.
    """
    result, earlier, rows = read("accelerator"), read(EARLIER), []
    for goal in json.loads((ROOT / "benchmarks" / "goals.json").read_text()):
        name, count = goal["workload"], goal["in flight"]
        is_older = earlier and not any(row["workload"] == name for row in result["rows"])
        device, workload = Device(**(earlier if is_older else result)["limits"]), named("full")[name]
        least = floor(shape(workload.model), workload, count, device)
        engine, services = (_fastest(section, name, count, result, earlier) for section in ("rows", "services"))
        share = f"{number(100 * engine['tokens/s'] / least.tokens_per_second)} %" if engine else ""
        limit, of_engine = f"{least.tokens_per_second:,.0f} tok/s", [_rates(engine), share]
        rows.append([f"{name}, {count}", goal["vLLM"], limit, goal["goal"], *of_engine, _rates(services)])
    return "\n\n".join([*map(_conditions, filter(None, (result, earlier))), table(HEADS, rows)])


def _fastest(section: str, workload: str, in_flight: int, *results: Mapping[str, Any]) -> dict[str, Any]:
    """Finds the fastest row of a workload in the first result that has one, but for layers as they were written."""
    for result in results:
        rows = [
            row for row in result.get(section, ()) if (row["workload"], row.get("in flight")) == (workload, in_flight)
        ]
        if serving := [row for row in rows if row.get("encoder") != "eager"]:
            device = result["limits"]["name"].removeprefix("NVIDIA ").partition(" ")[0]
            best: dict[str, Any] = max(serving, key=lambda row: float(row["tokens/s"]))
            return best | {"device": device}
    return {}


def _rates(row: Mapping[str, Any]) -> str:
    if not row:
        return "nothing yet"
    rate, middle, late = (number(row[name]) for name in ("tokens/s", "p50 ms", "p99 ms"))
    return f"{rate} tok/s, p50 {middle} ms, p99 {late} ms ({row['device']})"


def _conditions(result: Mapping[str, Any]) -> str:
    """States the rates of a device, and of which commits the parts of its result are."""
    parts, device = [row for row in result["parts"] if not {"error", "skipped"} & set(row)], Device(**result["limits"])
    rates = (
        f"{device.flops / 1e12:.0f} TFLOP/s, {device.memory / 1e12:.2g} TB/s, to the host {device.link / 1e9:.0f} GB/s"
    )
    return f"{device.name}: {rates}; commits {', '.join(dict.fromkeys(row['commit'] for row in parts))}."

"""The tables of docs/accelerator.md from the results: floors, and goals."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.result import number, read, table
from benchmarks.roofline import H200, Device, Floor, floor, shape
from benchmarks.workloads import named


def measured() -> tuple[dict[str, Any], Device]:
    """Reads the accelerator's result, empty where there is none, and its device: an H200 without a result."""
    result = read("accelerator")
    return result, Device(**result["limits"]) if result else H200


def floors() -> str:
    """Renders the least that each workload takes by the measured limits of a device, or by those of a data sheet."""
    result, device = measured()
    rates = (
        f"{device.flops / 1e12:.0f} TFLOP/s, {device.memory / 1e12:.2g} TB/s, to the host {device.link / 1e9:.0f} GB/s"
    )
    source = (
        f"measured at commit {result['machine']['commit']}" if result else "computed; nothing has been measured yet"
    )
    rows = []
    for workload in named("full").values():
        for count in workload.in_flight:
            least = floor(shape(workload.model), workload, count, device)
            parts = [number(1e9 * seconds) for seconds in asdict(least).values()]
            row = fastest(result, "rows", workload.name, count)
            reached = f"{number(100 * row['tokens/s'] / least.tokens_per_second)} %" if row else "nothing yet"
            rows.append([f"{workload.name}, {count}", *parts, number(least.tokens_per_second), least.binds, reached])
    heads = ["workload, in flight", *Floor.__annotations__, "tokens/s at most", "bound by", "reached"]
    return f"Of {device.name} ({rates}): {source}.\n\n{table(heads, rows)}"


def goals() -> str:
    """Renders what others published, what is wanted, and what was reached, on an earlier device where that is all."""
    (result, device), earlier, rows = measured(), read("h100/accelerator"), []
    for goal in json.loads((ROOT / "benchmarks" / "goals.json").read_text()):
        name, count = goal["workload"], goal["in flight"]
        is_older = earlier and not any(row["workload"] == name for row in result.get("rows", ()))
        of, workload = Device(**earlier["limits"]) if is_older else device, named("full")[name]
        limit = floor(shape(workload.model), workload, count, of).tokens_per_second
        reached = [
            _rates(fastest(result, section, name, count))
            or _rates(fastest(earlier, section, name, count), " (H100)")
            or "nothing yet"
            for section in ("rows", "services")
        ]
        rows.append([f"{name}, {count}", goal["vLLM"], f"{limit:,.0f} tok/s", goal["goal"], *reached])
    heads = ["workload, in flight", "vLLM", "limit", "goal", "our engine", "our services"]
    return "\n\n".join([*_commits(result), *_commits(earlier), table(heads, rows)])


def fastest(result: Mapping[str, Any], section: str, workload: str, in_flight: int) -> dict[str, Any]:
    """Finds the fastest row of a workload by what serves, where that was measured; empty where nothing was."""
    rows = [row for row in result.get(section, ()) if row["workload"] == workload and row.get("in flight") == in_flight]
    serving = [row for row in rows if row.get("encoder") != "eager"]
    return max(serving or rows, key=lambda row: float(row["tokens/s"]), default={})


def _rates(row: Mapping[str, Any], device: str = "") -> str:
    if not row:
        return ""
    rate, middle, late = (number(row[name]) for name in ("tokens/s", "p50 ms", "p99 ms"))
    return f"{rate} tok/s, p50 {middle} ms, p99 {late} ms{device}"


def _commits(result: Mapping[str, Any]) -> list[str]:
    """States the commits that the accelerator's result was measured at, if there is one."""
    commits = dict.fromkeys(row["commit"] for row in result.get("parts", ()) if not {"error", "skipped"} & set(row))
    return [f"{result['limits']['name']}: commits {', '.join(commits)}."] if commits else []

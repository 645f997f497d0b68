"""Renders the tables of README.md and of pages of docs from the results, or checks that they are of them.

What stands between the markers of a page is made here; captions around them are written by hand.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.result import number, read, shown, table, tables
from benchmarks.roofline import H200, Device, Floor, floor, shape
from benchmarks.rounds import SHARE
from benchmarks.workloads import named

NO_PEERS = ("selvage", "null", "engine")
README, MEASURED, ACCELERATOR = (ROOT / each for each in ("README.md", "docs/measured.md", "docs/accelerator.md"))
BLOCK = re.compile(r"(<!-- rendered (\S+): begin -->\n).*?(<!-- rendered \2: end -->)", re.DOTALL)


def rendered(page: str) -> str:
    """A page with its blocks made anew."""
    return BLOCK.sub(lambda found: f"{found[1]}{block(found[2])}\n{found[3]}", page)


def block(name: str) -> str:
    """What stands between the markers of that name."""
    if name in OWN:
        return OWN[name]()
    found = read(name)
    return f"{told(found)}\n\n{tables(found)}" if found else "No result yet."


def told(found: Mapping[str, Any]) -> str:
    """Where, how often, and at which commit."""
    settings = found["settings"]
    peers = {name: version for each in found["peers"].values() for name, version in each.items()}
    versions = ", ".join(f"{name} {version}" for name, version in peers.items())
    often = f"{settings['rounds']} rounds in each of {settings['starts']} starts"
    commit = found["machine"]["commit"]
    return f"{where(found)}; medians (quartiles) of {often}; commit {commit}{'; ' * bool(versions)}{versions}."


def where(found: Mapping[str, Any]) -> str:
    """The processor, and how much of it."""
    machine = found["machine"]
    return f"{found['settings']['threads']} threads of {machine['processor']}, {machine['cores']} cores"


def speed() -> str:
    """One table: ours, its share of products alone, and how it stands to each peer."""
    results = {name: read(name) for name in ("offline", "maxsim", "services")}
    rows = [
        _row(name, case, over)
        for name, found in results.items()
        for case in found.get("cases", ())
        if (over := {side: each for side, each in case["ours_over"].items() if not side.startswith(NO_PEERS)})
    ]
    if not rows:
        return "No result yet."
    heads = ["", "here", "of products alone", "times others"]
    told = dict.fromkeys(f"{where(each)}, commit {each['machine']['commit']}" for each in results.values() if each)
    return f"MiniLM-L6 in float32, medians (quartiles); {'; '.join(told)}.\n\n{table(heads, rows)}"


def _row(name: str, case: Mapping[str, Any], over: Mapping[str, Any]) -> list[str]:
    """Of a single client the latency is told, of many the rate."""
    single = name == "services" and case["case"].startswith("1 client,")
    figure = {"offline": "tokens/s", "maxsim": "documents/s"}.get(name, "p50 ms" if single else "requests/s")
    ours = case["sides"][case["ours"]]
    what = {"offline": "engine", "maxsim": "MaxSim", "services": "both services"}[name]
    against = "; ".join(f"{shown(each[figure])} x {side}" for side, each in over.items())
    share = f"{number(ours[SHARE]['median'])} %"
    return [f"{what}, {case['case']}", f"{number(ours[figure]['median'])} {figure}", share, against]


def floors() -> str:
    """What each workload costs at least; by the measured limits of a device, or by a data sheet."""
    found, device = accelerator()
    rates = (
        f"{device.flops / 1e12:.0f} TFLOP/s, {device.memory / 1e12:.2g} TB/s, to the host {device.link / 1e9:.0f} GB/s"
    )
    told = f"measured at commit {found['machine']['commit']}" if found else "computed; nothing has been measured yet"
    rows = []
    for workload in named("full").values():
        for count in workload.in_flight:
            least = floor(shape(workload.model), workload, count, device)
            parts = [number(1e9 * each) for each in asdict(least).values()]
            reached = measured(found, "rows", workload.name, count, "{% of floor} %")
            rows.append([f"{workload.name}, {count}", *parts, number(least.tokens_per_second), least.binds, reached])
    heads = ["workload, in flight", *Floor.__annotations__, "tokens/s at most", "bound by", "reached"]
    return f"Of {device.name} ({rates}): {told}.\n\n{table(heads, rows)}"


def goals() -> str:
    """What others published, what is wanted, and what was reached."""
    (found, device), workloads, rows = accelerator(), named("full"), []
    for goal in json.loads((ROOT / "benchmarks" / "goals.json").read_text()):
        name, count = goal["workload"], goal["in flight"]
        most = floor(shape(workloads[name].model), workloads[name], count, device).tokens_per_second
        told = "{tokens/s:,.0f} tok/s, p50 {p50 ms} ms, p99 {p99 ms} ms"
        reached = [measured(found, section, name, count, told) for section in ("rows", "services")]
        rows.append([f"{name}, {count}", goal["vLLM"], f"{most:,.0f} tok/s", goal["goal"], *reached])
    return table(["workload, in flight", "vLLM", "limit", "goal", "our engine", "our services"], rows)


def accelerator() -> tuple[dict[str, Any], Device]:
    """The result, and the device that it is of; without one an H200."""
    found = read("accelerator")
    return found, Device(**found["limits"]) if found else H200


def measured(found: Mapping[str, Any], section: str, workload: str, in_flight: int, told: str) -> str:
    """The fastest row of a workload in those words."""
    rows = [row for row in found.get(section, ()) if row["workload"] == workload and row.get("in flight") == in_flight]
    return told.format_map(max(rows, key=lambda row: row["tokens/s"])) if rows else "nothing yet"


OWN = {"speed": speed, "floors": floors, "goals": goals}
"""Blocks that are made apart; all others have the name of a benchmark."""


def main(given: argparse.Namespace) -> int:
    """1 where a page is not of the results, with --check."""
    pages = {path: rendered(path.read_text()) for path in (README, MEASURED, ACCELERATOR)}
    stale = [path.name for path, content in pages.items() if path.read_text() != content]
    if given.check:
        if stale:
            print(f"{', '.join(stale)}: not rendered from benchmarks/results", file=sys.stderr)
        return int(bool(stale))
    for path, content in pages.items():
        path.write_text(content)
    return 0

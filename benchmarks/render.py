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
README, MEASURED, ACCELERATOR = (ROOT / page for page in ("README.md", "docs/measured.md", "docs/accelerator.md"))
BLOCK = re.compile(r"(<!-- rendered (\S+): begin -->\n).*?(<!-- rendered \2: end -->)", re.DOTALL)


def rendered(page: str) -> str:
    """Renders the blocks of a page anew."""
    return BLOCK.sub(lambda match: f"{match[1]}{block(match[2])}\n{match[3]}", page)


def block(name: str) -> str:
    """The text between the markers of that name."""
    if name in SPECIAL:
        return SPECIAL[name]()
    result = read(name)
    return f"{conditions(result)}\n\n{tables(result)}" if result else "No result yet."


def conditions(result: Mapping[str, Any]) -> str:
    """The conditions of a result: machine, number of rounds, commit."""
    settings = result["settings"]
    peers = {name: version for packages in result["peers"].values() for name, version in packages.items()}
    versions = ", ".join(f"{name} {version}" for name, version in peers.items())
    often = f"{settings['rounds']} rounds in each of {settings['starts']} starts"
    commit = result["machine"]["commit"]
    return f"{where(result)}; medians (quartiles) of {often}; commit {commit}{'; ' * bool(versions)}{versions}."


def where(result: Mapping[str, Any]) -> str:
    """The processor, and how much of it."""
    machine = result["machine"]
    return f"{result['settings']['threads']} threads of {machine['processor']}, {machine['cores']} cores"


def speed() -> str:
    """One table: ours, its share of products alone, and how it stands to each peer."""
    results = {name: read(name) for name in ("offline", "maxsim", "services")}
    rows = [
        _row(name, case, over)
        for name, result in results.items()
        for case in result.get("cases", ())
        if (over := {side: ratio for side, ratio in case["ours_over"].items() if not side.startswith(NO_PEERS)})
    ]
    if not rows:
        return "No result yet."
    heads = ["", "here", "of products alone", "times others"]
    places = dict.fromkeys(
        f"{where(entry)}, commit {entry['machine']['commit']}" for entry in results.values() if entry
    )
    return f"MiniLM-L6 in float32, medians (quartiles); {'; '.join(places)}.\n\n{table(heads, rows)}"


def _row(name: str, case: Mapping[str, Any], over: Mapping[str, Any]) -> list[str]:
    """A row of the table of speed: the latency for a single client, the rate for many."""
    single = name == "services" and case["case"].startswith("1 client,")
    figure = {"offline": "tokens/s", "maxsim": "documents/s"}.get(name, "p50 ms" if single else "requests/s")
    ours = case["sides"][case["ours"]]
    what = {"offline": "engine", "maxsim": "MaxSim", "services": "both services"}[name]
    against = "; ".join(f"{shown(ratios[figure])} x {side}" for side, ratios in over.items())
    share = f"{number(ours[SHARE]['median'])} %"
    return [f"{what}, {case['case']}", f"{number(ours[figure]['median'])} {figure}", share, against]


def floors() -> str:
    """What each workload costs at least; by the measured limits of a device, or by a data sheet."""
    result, device = accelerator()
    rates = (
        f"{device.flops / 1e12:.0f} TFLOP/s, {device.memory / 1e12:.2g} TB/s, to the host {device.link / 1e9:.0f} GB/s"
    )
    origin = (
        f"measured at commit {result['machine']['commit']}" if result else "computed; nothing has been measured yet"
    )
    rows = []
    for workload in named("full").values():
        for count in workload.in_flight:
            least = floor(shape(workload.model), workload, count, device)
            parts = [number(1e9 * part) for part in asdict(least).values()]
            reached = measured(result, "rows", workload.name, count, "{% of floor} %")
            rows.append([f"{workload.name}, {count}", *parts, number(least.tokens_per_second), least.binds, reached])
    heads = ["workload, in flight", *Floor.__annotations__, "tokens/s at most", "bound by", "reached"]
    return f"Of {device.name} ({rates}): {origin}.\n\n{table(heads, rows)}"


def goals() -> str:
    """What others published, what is wanted, and what was reached."""
    (result, device), workloads, rows = accelerator(), named("full"), []
    for goal in json.loads((ROOT / "benchmarks" / "goals.json").read_text()):
        name, count = goal["workload"], goal["in flight"]
        most = floor(shape(workloads[name].model), workloads[name], count, device).tokens_per_second
        template = "{tokens/s:,.0f} tok/s, p50 {p50 ms} ms, p99 {p99 ms} ms"
        reached = [measured(result, section, name, count, template) for section in ("rows", "services")]
        rows.append([f"{name}, {count}", goal["vLLM"], f"{most:,.0f} tok/s", goal["goal"], *reached])
    return table(["workload, in flight", "vLLM", "limit", "goal", "our engine", "our services"], rows)


def accelerator() -> tuple[dict[str, Any], Device]:
    """The result, and the device that it is of; without one an H200."""
    result = read("accelerator")
    return result, Device(**result["limits"]) if result else H200


def measured(result: Mapping[str, Any], section: str, workload: str, in_flight: int, template: str) -> str:
    """The fastest row of a workload, formatted by `template`."""
    rows = [row for row in result.get(section, ()) if row["workload"] == workload and row.get("in flight") == in_flight]
    return template.format_map(max(rows, key=lambda row: row["tokens/s"])) if rows else "nothing yet"


SPECIAL = {"speed": speed, "floors": floors, "goals": goals}
"""Blocks with a function of their own; all others have the name of a benchmark."""


def main(options: argparse.Namespace) -> int:
    """Renders the pages; with --check only returns 1 if a page differs from the results."""
    pages = {path: rendered(path.read_text()) for path in (README, MEASURED, ACCELERATOR)}
    stale = [path.name for path, content in pages.items() if path.read_text() != content]
    if options.check:
        if stale:
            print(f"{', '.join(stale)}: not rendered from benchmarks/results", file=sys.stderr)
        return int(bool(stale))
    for path, content in pages.items():
        path.write_text(content)
    return 0

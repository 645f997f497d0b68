"""Renders the tables of README.md and other pages from the results, or checks that the pages show these results.

What stands between the markers of a page is rendered here; the captions around it are written by hand.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from benchmarks import scaling_page
from benchmarks.machine import ROOT
from benchmarks.published import page
from benchmarks.result import number, read, shown, table, tables
from benchmarks.roofline import H200, Device, Floor, floor, shape
from benchmarks.rounds import ALONE, FORMATS, SHARE, number_format
from benchmarks.workloads import named

NOT_PEERS = ("selvage", "null", "engine")
"""Beginnings of the names of sides that are no other product."""
README, FIGURES, ACCELERATOR, PUBLISHED, OPERATING = (
    ROOT / path
    for path in ("README.md", "docs/figures.md", "docs/accelerator.md", "docs/published.md", "docs/operating.md")
)
PAGES = (README, FIGURES, ACCELERATOR, PUBLISHED, OPERATING)
BLOCK = re.compile(r"(<!-- rendered (\S+): begin -->\n).*?(<!-- rendered \2: end -->)", re.DOTALL)
NO_RESULT = "No result yet."
TITLES = {"offline": "engine", "maxsim": "MaxSim", "services": "both services"}
"""Benchmarks that compare with other products, and what each measures."""
SPEED = (
    ("offline", "64 texts, lognormal"),
    ("offline", "8 texts, 512 tokens"),
    ("maxsim", "1,000 documents"),
    ("services", "64 clients, 16 tokens"),
    ("services", "64 clients, 128 tokens"),
)
"""Rows of README's table, by benchmark and case."""


def rendered(page: str) -> str:
    """Renders the blocks of a page again."""
    return BLOCK.sub(lambda match: f"{match[1]}{block(match[2])}\n{match[3]}", page)


def block(name: str) -> str:
    """Renders what stands between the markers of this name."""
    if name in BLOCKS:
        return BLOCKS[name]()
    result = read(name)
    return f"{conditions(result)}\n\n{tables(result)}" if result else NO_RESULT


def conditions(result: Mapping[str, Any]) -> str:
    """States where, how often and at which commit a result was measured, with the versions of the peers."""
    settings = result["settings"]
    peers = {name: version for packages in result["peers"].values() for name, version in packages.items()}
    versions = ", ".join(f"{name} {version}" for name, version in peers.items())
    rounds = f"{settings['rounds']} rounds in each of {settings['starts']} starts"
    commit = result["machine"]["commit"]
    return f"{place(result)}; medians (quartiles) of {rounds}; commit {commit}{'; ' * bool(versions)}{versions}."


def place(result: Mapping[str, Any]) -> str:
    """Names the processor, and how much of it was used."""
    machine = result["machine"]
    return f"{result['settings']['threads']} threads of {machine['processor']}, {machine['cores']} cores"


def speed() -> str:
    """Renders README's table: a few cases, each beside the fastest other product."""
    results = {name: read(name) for name in TITLES}
    chosen = [(name, case) for name, title in SPEED for case in _cases(results[name]) if case["case"] == title]
    rows = [[_workload(name, case, results), *_speed_row(name, case)] for name, case in chosen]
    if not rows:
        return NO_RESULT
    lines = [f"MiniLM-L6 in float32 on {_machines(results.values())}."]
    return "\n\n".join([*lines, table(["workload", "Selvage", "best other", "times"], rows)])


def _machines(results: Iterable[Mapping[str, Any]]) -> str:
    """Names each processor once, with its cores and the commits that were measured on it."""
    commits: dict[str, dict[str, None]] = {}
    for machine in (result["machine"] for result in results if result):
        commits.setdefault(f"{_processor(machine)}, {machine['cores']} cores", {})[machine["commit"]] = None
    return "; ".join(
        f"{processor} (commit{'s' * (len(those) > 1)} {' and '.join(those)})" for processor, those in commits.items()
    )


def _processor(machine: Mapping[str, Any]) -> str:
    """A processor's name and model, without its instructions."""
    name, _, rest = machine["processor"].replace("(R)", "").partition(" (")
    return f"{name} ({rest.rstrip(')').partition(',')[0]})" if rest else name


def _workload(name: str, case: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """Names a case, and its processor where the results of a table are of several."""
    several = len({_processor(result["machine"]) for result in results.values() if result}) > 1
    where = f", {_processor(results[name]['machine'])}" if several else ""
    return f"{TITLES[name]}, {case['case']}{where}"


def _speed_row(name: str, case: Mapping[str, Any]) -> list[str]:
    """Renders our figure, the fastest peer's, and ours over it."""
    figure, sides = _figure(name, case), case["sides"]
    best = max(_peers(case), key=lambda side: sides[side][figure]["median"])
    times = number(case["ours_over"][best][figure]["median"])
    ours, other = (f"{number(sides[side][figure]['median'])} {figure}" for side in (case["ours"], best))
    return [ours, f"{best}: {other}", times]


def summary() -> str:
    """Renders all cases in one table: our figure, its share of products alone, and ours over each peer's."""
    results = {name: read(name) for name in TITLES}
    rows = [
        [_workload(name, case, results), *_summary_row(name, case)]
        for name, result in results.items()
        for case in _cases(result)
    ]
    if not rows:
        return NO_RESULT
    heads = ["", "here", "of products alone", "times others"]
    places = dict.fromkeys(
        f"{place(result)}, commit {result['machine']['commit']}" for result in results.values() if result
    )
    return f"MiniLM-L6 in float32, medians (quartiles); {'; '.join(places)}.\n\n{table(heads, rows)}"


def _summary_row(name: str, case: Mapping[str, Any]) -> list[str]:
    figure, ours = _figure(name, case), case["sides"][case["ours"]]
    times = "; ".join(f"{shown(over[figure])} x {side}" for side, over in _peers(case).items())
    share = f"{number(ours[SHARE]['median'])} %"
    return [f"{number(ours[figure]['median'])} {figure}", share, times]


def limits(name: str = "offline") -> str:
    """Renders what products alone allow: how many times the fastest other product anybody could be, by format."""
    rows, result = [], read(name)
    for case in _cases(result):
        for dtype in FORMATS:
            of_format = {side: spreads for side, spreads in case["sides"].items() if number_format(side) == dtype}
            rates = {side: spreads["tokens/s"]["median"] for side, spreads in of_format.items()}
            alone = next((rate for side, rate in rates.items() if side.startswith(ALONE)), 0.0)
            others = {side: rate for side, rate in rates.items() if not side.startswith((*NOT_PEERS, ALONE))}
            ours = rates.get(f"selvage {dtype}")
            if alone and others and ours:
                best = max(others, key=others.__getitem__)
                times = case["ours_over"][best]["tokens/s"]["median"], alone / others[best]
                shown_rates = f"{ours:,.0f}", f"{best}: {others[best]:,.0f}", f"{alone:,.0f}"
                rows.append([f"{case['case']}, {dtype}", *shown_rates, *map(number, times)])
    heads = ["", "here, tokens/s", "fastest other", "products alone", "times", "times at most"]
    return f"{conditions(result)}\n\n{table(heads, rows)}" if rows else NO_RESULT


def overload() -> str:
    """Renders what is served of too much: rates, the slowest answers and how fast a refusal comes."""
    result, figures = read("overload"), ("requests/s", "goodput/s", "refused/s", "p99 ms", "refused p50 ms")
    rows = []
    for case in result.get("cases", ()):
        ours = case["sides"][case["ours"]]
        rows.append([case["case"], *(number(ours[name]["median"]) if name in ours else "" for name in figures)])
    return f"{conditions(result)}\n\n{table(['', *figures], rows)}" if rows else NO_RESULT


def _cases(result: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the cases that compare with a peer; none of an empty result."""
    return (case for case in result.get("cases", ()) if _peers(case))


def _peers(case: Mapping[str, Any]) -> dict[str, Any]:
    """Selects our figures over those of other products in the number format of our side, by side."""
    return {
        side: over
        for side, over in case["ours_over"].items()
        if not side.startswith(NOT_PEERS) and number_format(side) == number_format(case["ours"])
    }


def _figure(name: str, case: Mapping[str, Any]) -> str:
    """Names the figure that a benchmark's case is compared by: a single client's latency, all else by its rate."""
    single = name == "services" and case["case"].startswith("1 client,")
    return {"offline": "tokens/s", "maxsim": "documents/s"}.get(name, "p50 ms" if single else "requests/s")


def floors() -> str:
    """Renders the least that each workload takes by the measured limits of a device, or by those of a data sheet."""
    result, device = accelerator()
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
            rate = fastest(result, "rows", workload.name, count, "{tokens/s}").replace(",", "")
            reached = f"{number(100 * float(rate) / least.tokens_per_second)} %" if rate else "nothing yet"
            rows.append([f"{workload.name}, {count}", *parts, number(least.tokens_per_second), least.binds, reached])
    heads = ["workload, in flight", *Floor.__annotations__, "tokens/s at most", "bound by", "reached"]
    return f"Of {device.name} ({rates}): {source}.\n\n{table(heads, rows)}"


def goals() -> str:
    """Renders what others published, what is wanted, and what was reached."""
    (result, device), workloads, rows = accelerator(), named("full"), []
    earlier = read("h100/accelerator")
    for goal in json.loads((ROOT / "benchmarks" / "goals.json").read_text()):
        name, count = goal["workload"], goal["in flight"]
        of = device
        if earlier and not any(row["workload"] == name for row in result.get("rows", ())):
            of = Device(**earlier["limits"])
        limit = floor(shape(workloads[name].model), workloads[name], count, of).tokens_per_second
        words = "{tokens/s} tok/s, p50 {p50 ms} ms, p99 {p99 ms} ms"
        reached = [
            fastest(result, section, name, count, words)
            or fastest(earlier, section, name, count, f"{words} (H100)")
            or "nothing yet"
            for section in ("rows", "services")
        ]
        rows.append([f"{name}, {count}", goal["vLLM"], f"{limit:,.0f} tok/s", goal["goal"], *reached])
    heads = ["workload, in flight", "vLLM", "limit", "goal", "our engine", "our services"]
    return "\n\n".join([*_commits(result), *_commits(earlier), table(heads, rows)])


def texts_in_pieces() -> str:
    """Renders the speed of texts in pieces on a device."""
    names = ("texts", "way", "tokens/s", "peak GB", "least cosine")
    result, device = accelerator()
    measured = result.get("pieces", ())
    models = ", ".join(dict.fromkeys(row["model"] for row in measured))
    rows = [[number(row[name]) if isinstance(row[name], int) else str(row[name]) for name in names] for row in measured]
    return f"{device.name}, {models}.\n\n{table(list(names), rows)}" if rows else "Nothing yet."


def _commits(result: Mapping[str, Any]) -> list[str]:
    """States of which commit the parts of the accelerator's result are, if there is one."""
    measured = [row for row in result.get("parts", ()) if not {"error", "skipped"} & set(row)]
    commits = dict.fromkeys(row["commit"] for row in measured)
    parts = {commit: [row["part"] for row in measured if row["commit"] == commit] for commit in commits}
    sentence = "; ".join(f"at commit {commit} {', '.join(names)}" for commit, names in parts.items())
    return [f"{result['limits']['name']}: {sentence}."] if sentence else []


def accelerator() -> tuple[dict[str, Any], Device]:
    """Reads the accelerator's result, empty where there is none, and its device: an H200 without a result."""
    result = read("accelerator")
    return result, Device(**result["limits"]) if result else H200


def fastest(result: Mapping[str, Any], section: str, workload: str, in_flight: int, words: str) -> str:
    """Formats the fastest row of a workload by the template `words`; empty where it was not measured."""
    rows = [row for row in result.get(section, ()) if row["workload"] == workload and row.get("in flight") == in_flight]
    rows = [row for row in rows if row.get("encoder") != "eager"] or rows  # what serves, where it was measured
    if not rows:
        return ""
    row = max(rows, key=lambda row: row["tokens/s"])
    return words.format_map(
        {name: number(value) if isinstance(value, int | float) else value for name, value in row.items()}
    )


BLOCKS = (
    {"speed": speed, "summary": summary, "limits": limits, "floors": floors, "goals": goals, "texts": texts_in_pieces}
    | {f"limits-{shape}": partial(limits, f"offline-{shape}") for shape in ("bge-base", "qwen3-0.6b")}
    | {"overload": overload}
    | {"published": page.summary}
    | scaling_page.BLOCKS
)
"""Blocks with a function of their own; all others have the name of a benchmark."""


def main(arguments: argparse.Namespace) -> int:
    """Writes the pages. With --check compares them instead, and gives 1 where one does not show the results."""
    pages = {path: rendered(path.read_text()) for path in PAGES}
    stale = [str(path.relative_to(ROOT)) for path, content in pages.items() if path.read_text() != content]
    if arguments.check:
        if stale:
            print(f"{', '.join(stale)}: not rendered from benchmarks/results", file=sys.stderr)
        return int(bool(stale))
    for path, content in pages.items():
        path.write_text(content)
    return 0

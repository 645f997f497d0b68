"""Renders the tables of README.md and other pages from the results, or checks that the pages show these results.

What stands between the markers of a page is rendered here; the captions around it are written by hand.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.accelerator import page as accelerator
from benchmarks.benchmark import ALONE, FORMATS, SHARE, number_format
from benchmarks.machine import ROOT
from benchmarks.published import page as published
from benchmarks.result import NO_RESULT, number, read, shown, table, tables

NOT_PEERS = ("selvage", "null", "engine")
"""Beginnings of the names of sides that are no other product."""
README, FIGURES, ACCELERATOR, PUBLISHED, OPERATING = (
    ROOT / path
    for path in ("README.md", "docs/figures.md", "docs/accelerator.md", "docs/published.md", "docs/operating.md")
)
PAGES = (README, FIGURES, ACCELERATOR, PUBLISHED, OPERATING)
RUNTIME_SETTING = re.compile(rf" ({'|'.join(FORMATS)}), best batch$")
BLOCK = re.compile(r"(<!-- rendered (\S+): begin -->\n).*?(<!-- rendered \2: end -->)", re.DOTALL)
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
GRPC, CPU = "gRPC", "CPU ms/request"
SHORT, LONG = (f"1 frontend, 64 clients, {text}" for text in ("16 tokens", "texts of 128 tokens"))
LISTS, LONG_LISTS = (f"1 frontend, 16 clients, 32 texts of {tokens} tokens" for tokens in (16, 128))
ROWS = "1 frontend, 2 clients, token vectors of 56 texts of 254 tokens"
"""Our side of `frontends`, the figure of each process, and its cases, for docs/operating.md."""
SPEEDS = (10_000, 100_000, 1_000_000)
"""Tokens a second of a worker for which sizes are worked out."""
REQUESTS = ((1, 16), (1, 128), (32, 128), (32, 512))
"""Texts of a request, and tokens of each."""
BUSY = 0.7
"""Share of its core that a frontend should use: above it, requests wait for each other."""


def rendered(page: str) -> str:
    """Renders the blocks of a page again."""
    return BLOCK.sub(lambda match: f"{match[1]}{block(match[2])}\n{match[3]}", page)


def block(name: str) -> str:
    """Renders what stands between the markers of this name."""
    if name in BLOCKS:
        try:
            return BLOCKS[name]()
        except KeyError:  # what a table needs was not measured
            return NO_RESULT
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
    """Names a case, and its processor where the results of a table are of several: by its maker if that tells them."""
    processors = {_processor(result["machine"]) for result in results.values() if result}
    makers = {processor.partition(" ")[0] for processor in processors}
    processor = _processor(results[name]["machine"])
    if len(makers) == len(processors):
        processor = processor.partition(" ")[0]
    where = f", {processor}" if len(processors) > 1 else ""
    return f"{TITLES[name]}, {case['case']}{where}"


def _speed_row(name: str, case: Mapping[str, Any]) -> list[str]:
    """Renders our figure, the fastest peer's, and ours over it."""
    figure, sides = _figure(name, case), case["sides"]
    best = max(_peers(case), key=lambda side: sides[side][figure]["median"])
    times = number(case["ours_over"][best][figure]["median"])
    ours, other = (f"{number(sides[side][figure]['median'])} {figure}" for side in (case["ours"], best))
    return [ours, f"{_product(best)}: {other}", times]


def _product(side: str) -> str:
    """A runtime by its name alone: its side has our number format, and its best batch."""
    return RUNTIME_SETTING.sub("", side)


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
    times = "; ".join(f"{shown(over[figure])} x {_product(side)}" for side, over in _peers(case).items())
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
                shown_rates = f"{ours:,.0f}", f"{_product(best)}: {others[best]:,.0f}", f"{alone:,.0f}"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendCost:
    """CPU milliseconds of a frontend: `request` for each request, `text` for each text, `token` for each token."""

    request: float
    text: float
    token: float

    def milliseconds(self, texts: int, tokens: int) -> float:
        """CPU milliseconds of a request of so many texts and tokens in all."""
        return self.request + texts * self.text + tokens * self.token


def frontend_figures(case: str, side: str = GRPC) -> dict[str, float]:
    """The medians of one side of a case of `frontends`. Raises KeyError for a case that was not measured."""
    sides = {row["case"]: row["sides"] for row in read("frontends").get("cases", ())}[case]
    return {figure: spread["median"] for figure, spread in sides[side].items()}


def frontend_cost(side: str = GRPC) -> FrontendCost:
    """Solves the costs from requests of 1 and of 32 texts, of 16 and of 128 tokens each."""
    short, lists, long_lists = (frontend_figures(case, side)[f"frontend: {CPU}"] for case in (SHORT, LISTS, LONG_LISTS))
    token = (long_lists - lists) / (32 * (128 - 16))
    text = (lists - short - (32 - 1) * 16 * token) / (32 - 1)
    return FrontendCost(request=short - text - 16 * token, text=text, token=token)


def scaling_costs() -> str:
    """Renders the constants of the arithmetic of docs/operating.md."""
    machine, token_rows, link = read("frontends")["machine"], frontend_figures(ROWS), frontend_figures(LONG)
    megabytes = 56 * 254 * frontend_figures("sizes")["float32 rows: bytes/token"] / 1e6
    costs = {side: frontend_cost(side) for side in (GRPC, "HTTP")}
    rows = [[f"a request, {side}", f"{number(cost.request)} ms of a frontend's core"] for side, cost in costs.items()]
    rows += [[f"each text of it, {side}", f"{number(cost.text)} ms"] for side, cost in costs.items()]
    rows += [[f"each 1,000 tokens of it, {side}", f"{number(1e3 * cost.token)} ms"] for side, cost in costs.items()]
    front, worker = (number(token_rows[f"{part}: {CPU}"] / megabytes) for part in ("frontend", "worker"))
    request = number(link[f"worker: {CPU}"])
    rows += [
        ["a megabyte of token rows, gRPC", f"{front} ms of a frontend's core"],
        ["the same", f"{worker} ms of the worker's host"],
        [
            "a request of one text",
            f"{request} ms of the worker's host, beside packing its steps",
        ],
    ]
    where = f"{machine['processor']}, {machine['cores']} cores; commit {machine['commit']}."
    return f"{where}\n\n{table(['what', 'takes'], rows)}"


def frontends_needed(speed: float, texts: int, tokens: int, cost: FrontendCost) -> float:
    """Frontends, of a core each, for a worker of `speed` tokens a second: a part of BUSY of each core is used."""
    requests = speed / (texts * tokens)
    return requests * cost.milliseconds(texts, texts * tokens) / 1e3 / BUSY


def scaling_needed() -> str:
    """Renders how many frontends a worker needs."""
    cost = frontend_cost()
    heads = ["texts a request, tokens each", *(f"{speed:,} tokens/s" for speed in SPEEDS)]
    rows = [
        [f"{texts} x {tokens}", *(number(frontends_needed(speed, texts, tokens, cost)) for speed in SPEEDS)]
        for texts, tokens in REQUESTS
    ]
    return table(heads, rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "speed": speed,
    "summary": summary,
    "limits": limits,
    "limits-bge-base": partial(limits, "offline-bge-base"),
    "limits-qwen3-0.6b": partial(limits, "offline-qwen3-0.6b"),
    "overload": overload,
    "published": published.summary,
    "floors": accelerator.floors,
    "goals": accelerator.goals,
    "scaling-costs": scaling_costs,
    "scaling-needed": scaling_needed,
}
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

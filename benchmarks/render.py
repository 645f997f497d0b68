"""Renders the tables of README.md and other pages from the results, or checks that the pages show these results.

What stands between the markers of a page is rendered here; the captions around it are written by hand.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmarks.accelerator import page as accelerator
from benchmarks.benchmark import ALONE, FORMATS, SHARE, number_format
from benchmarks.machine import PAGES, ROOT
from benchmarks.published import page as published
from benchmarks.result import NO_RESULT, number, read, shown, table, tables

NOT_PEERS = ("selvage", "null", "engine")
"""Beginnings of the names of sides that are no other product."""
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
SHORT_TOKENS = 16
"""Tokens of the texts of `host`."""
ROW_BYTES = 4 * 384
"""Bytes of a token's row of MiniLM in float32."""
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
    try:
        return BLOCKS[name]() if name in BLOCKS else f"{conditions(result := read(name))}\n\n{tables(result)}"
    except KeyError:  # what a table needs was not measured
        return NO_RESULT


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


def _compared() -> dict[str, dict[str, Mapping[str, Any]]]:
    """The cases that compare with another product, by benchmark and by name; of those that were measured."""
    results = {name: read(name) for name in TITLES}
    return {
        name: {case["case"]: case for case in result["cases"] if _peers(case)}
        for name, result in results.items()
        if result
    }


def speed() -> str:
    """Renders README's table: a few cases, each beside the fastest other product."""
    compared = _compared()
    chosen = [(name, case) for name, title in SPEED if (case := compared.get(name, {}).get(title))]
    heads = ["workload", "Selvage", "best other", "times"]
    return f"{_where()}\n\n{table(heads, [_speed_row(*row) for row in chosen])}" if chosen else NO_RESULT


def _where() -> str:
    """States the model, and where each benchmark was measured and at which commit."""
    places = dict[str, list[str]]()
    for name, title in TITLES.items():
        if result := read(name):
            places.setdefault(f"{place(result)}, commit {result['machine']['commit']}", []).append(title)
    machines = "; ".join(f"{' and '.join(titles)} on {where}" for where, titles in places.items())
    return f"MiniLM-L6 in float32, medians (quartiles): {machines}."


def _speed_row(name: str, case: Mapping[str, Any]) -> list[str]:
    """Renders our figure, the fastest peer's, and ours over it."""
    figure, sides = _figure(name, case), case["sides"]
    best = max(_peers(case), key=lambda side: sides[side][figure]["median"])
    times = number(case["ours_over"][best][figure]["median"])
    ours, other = (f"{number(sides[side][figure]['median'])} {figure}" for side in (case["ours"], best))
    return [f"{TITLES[name]}, {case['case']}", ours, f"{best}: {other}", times]


def summary() -> str:
    """Renders all cases in one table: our figure, its share of products alone, and ours over each peer's."""
    rows = [_summary_row(name, case) for name, cases in _compared().items() for case in cases.values()]
    return f"{_where()}\n\n{table(['', 'here', 'of products alone', 'times others'], rows)}" if rows else NO_RESULT


def _summary_row(name: str, case: Mapping[str, Any]) -> list[str]:
    figure, ours = _figure(name, case), case["sides"][case["ours"]]
    times = "; ".join(f"{shown(over[figure])} x {side}" for side, over in _peers(case).items())
    title, share = f"{TITLES[name]}, {case['case']}", f"{number(ours[SHARE]['median'])} %"
    return [title, f"{number(ours[figure]['median'])} {figure}", share, times]


def limits(name: str = "offline") -> str:
    """Renders what products alone allow: how many times the fastest other product anybody could be, by format."""
    rows, result = [], read(name)
    for case in result["cases"]:
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
    return f"{conditions(result)}\n\n{table(heads, rows)}"


def overload() -> str:
    """Renders what is served of too much: rates, the slowest answers and how fast a refusal comes."""
    result, figures = read("overload"), ("requests/s", "goodput/s", "refused/s", "p99 ms", "refused p50 ms")
    rows = []
    for case in result["cases"]:
        ours = case["sides"][case["ours"]]
        rows.append([case["case"], *(number(ours[name]["median"]) if name in ours else "" for name in figures)])
    return f"{conditions(result)}\n\n{table(['', *figures], rows)}"


def host() -> str:
    """Renders CPU a request of both services, and how many times that of the null pair it is, by load."""
    result, rows, jobs, bound = read("host"), [], [], ""
    for case in result["cases"]:
        null = case["sides"].get("null pair")
        for side, figures in case["sides"].items():
            if side == ALONE:
                seconds = result["settings"]["threads"] * SHORT_TOKENS / figures["tokens/s"]["median"]  # of processor
                over = 1e3 * seconds / null[f"worker: {CPU}"]["median"]
                bound = (
                    f" The layer's products alone take {1e3 * seconds:.2f} ms a text: {over:.1f} times the null back."
                )
                continue
            if null is None:
                count = int(case["case"].split()[2])
                spent = [figures[f"worker{part}: {CPU}"]["median"] / count for part in ("", "'s event loop")]
                jobs.append([case["case"], side, *(f"{milliseconds:.3f}" for milliseconds in spent)])
                continue
            if side == "null pair":
                continue
            cells = [number(figures["requests/s"]["median"])]
            for part in ("frontend", "frontend's event loop", "worker", "worker's event loop"):
                ours, least = (figures_of[f"{part}: {CPU}"]["median"] for figures_of in (figures, null))
                cells.append(f"{ours:.2f} ({ours / least:.1f})")
            rows.append([case["case"], side, *cells])
    heads = ["load", "", "requests/s", "frontend", "its event loop", "worker", "its event loop"]
    of_messages = table(["load", "", "worker, ms a text", "its event loop, ms a text"], jobs)
    return f"{conditions(result)}{bound}\n\n{table(heads, rows)}\n\n{of_messages}"


def states() -> str:
    """Renders how many times faster packed models with states are than by equal length, and in pieces than whole."""
    result, rows = read("states"), dict[str, list[str]]()
    for case in result["cases"]:
        (name, _), ours = case["case"].split(": "), case["sides"][case["ours"]]
        rows.setdefault(name, [name]).append(number(ours["tokens/s"]["median"]))
        rows[name] += [shown(over["tokens/s"]) for over in case["ours_over"].values()]
    settings = result["settings"]
    texts = f"{settings['texts']} texts of {settings['lengths']} lengths"
    heads = ["", f"{texts}, tokens/s", "times by equal length", "one long text, tokens/s", "times in pieces"]
    return f"{conditions(result)}\n\n{table(heads, list(rows.values()))}"


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


def frontend_figures(case: str, side: str = GRPC) -> dict[str, float]:
    """The medians of one side of a case of `frontends`. Raises KeyError for a case that was not measured."""
    sides = {row["case"]: row["sides"] for row in read("frontends").get("cases", ())}[case]
    return {figure: spread["median"] for figure, spread in sides[side].items()}


def frontend_cost(side: str = GRPC) -> tuple[float, float, float]:
    """Solves the CPU milliseconds of a frontend for each request, each text and each token, from requests of 1 and of
    32 texts, of 16 and of 128 tokens each."""
    short, lists, long_lists = (frontend_figures(case, side)[f"frontend: {CPU}"] for case in (SHORT, LISTS, LONG_LISTS))
    token = (long_lists - lists) / (32 * (128 - 16))
    text = (lists - short - (32 - 1) * 16 * token) / (32 - 1)
    return short - text - 16 * token, text, token


def scaling_costs() -> str:
    """Renders the constants of the arithmetic of docs/operating.md."""
    machine, token_rows, link = read("frontends")["machine"], frontend_figures(ROWS), frontend_figures(LONG)
    megabytes = 56 * 254 * ROW_BYTES / 1e6
    costs = {side: frontend_cost(side) for side in (GRPC, "HTTP")}
    rows = [[f"a request, {side}", f"{number(cost[0])} ms of a frontend's core"] for side, cost in costs.items()]
    rows += [[f"each text of it, {side}", f"{number(cost[1])} ms"] for side, cost in costs.items()]
    rows += [[f"each 1,000 tokens of it, {side}", f"{number(1e3 * cost[2])} ms"] for side, cost in costs.items()]
    front, worker = (number(token_rows[f"{part}: {CPU}"] / megabytes) for part in ("frontend", "worker"))
    request = number(link[f"worker: {CPU}"])
    rows += [
        ["a megabyte of token rows, gRPC", f"{front} ms of a frontend's core"],
        ["the same", f"{worker} ms of the worker's host"],
        ["a request of one text", f"{request} ms of the worker's host, beside packing its steps"],
    ]
    where = f"{machine['processor']}, {machine['cores']} cores; commit {machine['commit']}."
    return f"{where}\n\n{table(['what', 'takes'], rows)}"


def frontends_needed(speed: float, texts: int, tokens: int, cost: tuple[float, float, float]) -> float:
    """Frontends, of a core each, for a worker of `speed` tokens a second: a part of BUSY of each core is used."""
    request, text, token = cost
    milliseconds = request + texts * text + texts * tokens * token
    return speed / (texts * tokens) * milliseconds / 1e3 / BUSY


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
    "host": host,
    "states": states,
    "published": published.summary,
    "goals": accelerator.goals,
    "scaling-costs": scaling_costs,
    "scaling-needed": scaling_needed,
}
"""Blocks with a function of their own; all others have the name of a benchmark."""


def main(arguments: argparse.Namespace) -> int:
    """Writes the pages. With --check compares them instead, and gives 1 where one does not show the results."""
    pages = {ROOT / page: rendered((ROOT / page).read_text()) for page in PAGES}
    stale = [path for path, content in pages.items() if path.read_text() != content]
    if arguments.check:
        if stale:
            names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
            print(f"{names}: not rendered from benchmarks/results", file=sys.stderr)
        return int(bool(stale))
    for path in stale:
        path.write_text(pages[path])
    return 0

"""Tables of docs/published.md from the results: all rows in one table, and each row with all of its figures."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from benchmarks.published.row import LEAST_COSINE, OURS, STEP_ROWS, VLLM, Row
from benchmarks.published.rows import rows
from benchmarks.result import number, read, shown, table, tables
from benchmarks.rounds import SHARE

NO_RESULT = "No result yet."
RATE, SLOWEST = "requests/s", "p99 ms"
PAIRS = ("p50 ms", "p99 ms", SHARE)
HEADS = ("", "Selvage", "vLLM, its best setting", "times", *PAIRS, "cosine to the model, least")
CPU = ": CPU ms/request"
WORKERS = {OURS: f"worker{CPU}", VLLM: f"VLLM::Worker{CPU}"}
"""The figure of the process that computes, by server."""
PARTS = ("products", "rest of the worker", "other processes", "clients", "idle")


def summary(folder: str = "published") -> str:
    """Renders a line for each case of each row: our rate beside vLLM's best setting, and the latencies of both."""
    lines = [line for row in rows().values() for line in _lines(row, read(f"{folder}/{row.name}"))]
    return table(HEADS, lines) if lines else NO_RESULT


def elsewhere(folder: str) -> str:
    """Renders the same lines from results of another processor, a line of conditions for each row before them."""
    results = [result for row in rows().values() if (result := read(f"{folder}/{row.name}"))]
    lines = [f"{result['benchmark'].partition('/')[2]}: {conditions(result)}" for result in results]
    return "\n\n".join(["\n".join(f"- {line}" for line in lines), summary(folder)]) if lines else NO_RESULT


def headlines() -> str:
    """Renders a line for one case of each row that has been measured: our figure beside vLLM's best setting."""
    lines = []
    for row in rows().values():
        result = read(f"published/{row.name}")
        lines += [line[:4] for line in _lines(row, result, row.cases[row.headline].name)]
    return table(HEADS[:4], lines) if lines else NO_RESULT


def where_time_goes() -> str:
    """Renders where the time of all cores goes, for each case about a rate, ours beside vLLM's best setting."""
    lines: list[list[str]] = []
    for row in rows().values():
        result = read(f"published/{row.name}")
        best = {case["case"]: best_of(case, RATE) or "" for case in result.get("cases", ()) if not row.latency}
        lines += shares(row, result, best)
    return table(["% of all cores' time", *PARTS], lines) if lines else NO_RESULT


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


def _lines(row: Row, result: Mapping[str, Any], only: str = "") -> Iterator[list[str]]:
    for case in result.get("cases", ()):
        if only not in ("", case["case"]):
            continue
        sides, ours = case["sides"], case["ours"]
        figure = SLOWEST if row.latency else RATE
        best = best_of(case, figure)
        if best is None:
            continue
        pairs = [_pair(sides[ours], sides[best], name) for name in PAIRS]
        rates = [f"{number(sides[side][figure]['median'])} {figure}" for side in (ours, best)]
        cosines = " / ".join(f"{_least(result, side):.5f}" for side in (ours, best))
        times = shown(case["ours_over"][best][figure])
        yield [f"{row.name}, {case['case']}", rates[0], f"{rates[1]} ({best})", times, *pairs, cosines]


def _pair(ours: Mapping[str, Any], theirs: Mapping[str, Any], name: str) -> str:
    """The medians of a figure: ours, then theirs; nothing where one lacks it."""
    return " / ".join(number(of[name]["median"]) for of in (ours, theirs)) if name in ours and name in theirs else ""


def best_of(case: Mapping[str, Any], figure: str) -> str | None:
    """Finds the side of vLLM with the best median: the most of a rate, the least of a latency. None without any."""
    medians: dict[str, float] = {
        side: figures[figure]["median"] for side, figures in case["sides"].items() if side.startswith(VLLM)
    }
    if not medians:
        return None
    return min(medians, key=lambda side: medians[side] if figure.endswith(" ms") else -medians[side])


def _least(result: Mapping[str, Any], side: str) -> float:
    """Reads the least cosine of a side's answers to those of the model's own code."""
    least: float = next(iter(result["agreement"][side].values()))[LEAST_COSINE]
    return least


def details(name: str) -> str:
    """Renders a row: where and how it was measured, how the answers agree, seconds to ready, all figures."""
    result = read(f"published/{name}")
    if not result:
        return NO_RESULT
    parts = [f"{result['says']} {conditions(result)}", _agreement(result), tables(result)]
    return "\n\n".join(parts)


def conditions(result: Mapping[str, Any]) -> str:
    """States the machine, the rounds, the commit, the versions of vLLM and the flags of both servers."""
    machine, settings = result["machine"], result["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in result["peers"]["vllm"].items())
    flags = "; ".join(f"{side}: `{flags}`" for side, flags in settings["flags"].items() if flags)
    rounds = f"{settings['rounds']} round{'s' * (settings['rounds'] > 1)}"
    starts = (
        "all servers loaded at once and asked in turns" if settings.get("together") else "each with a start of its own"
    )
    parts = [
        f"{settings['threads']} of {machine['cores']} cores of {machine['processor']}",
        f"medians (quartiles) of {rounds}, {starts}",
        f"{_length(settings)} a case",
        f"scale {settings['scale']}",
        f"commit {machine['commit']}",
        versions,
        f"preloaded in vLLM: {', '.join(settings['preloaded in vLLM']) or 'nothing'}",
        flags,
    ]
    return f"{'; '.join(filter(None, parts))}."


def _length(settings: Mapping[str, Any]) -> str:
    """Says how long a case is asked: for seconds, or until its requests are answered."""
    counts = settings.get("requests", {}).values()  # older results do not tell
    parts = [] if counts and all(counts) else [f"{number(settings['seconds'])} s"]
    if counted := [count for count in counts if count]:
        ends = dict.fromkeys((min(counted), max(counted)))
        parts.append(f"{' to '.join(f'{count:,}' for count in ends)} requests")
    return " or ".join(parts)


def _agreement(result: Mapping[str, Any]) -> str:
    """Renders a line a side: the seconds of its first start, and its cosines to each other's answers."""
    heads: dict[str, None] = {}
    lines: list[dict[str, str]] = []
    for side, others in result["agreement"].items():
        cells = {"first start, s": number(result["cold start, s"][side])}
        for other, cosines in others.items():
            cells |= {f"{name}, to {other}": f"{value:.5f}" for name, value in cosines.items()}
        heads |= dict.fromkeys(cells)
        lines.append({"": side, **cells})
    return table(["", *heads], [[line.get(head, "") for head in ("", *heads)] for line in lines])


def step_rows() -> str:
    """Renders the row without a server."""
    result = read(f"published/{STEP_ROWS}")
    if not result:
        return NO_RESULT
    machine, versions = (
        result["machine"],
        ", ".join(f"{name} {version}" for name, version in result["peers"]["vllm"].items()),
    )
    place = f"One of {machine['cores']} cores of {machine['processor']}"
    rounds = f"medians (quartiles) of {result['settings']['rounds']} rounds; commit {machine['commit']}; {versions}."
    return f"{result['says']} {place}; {rounds}\n\n{tables(result)}"


BLOCKS: dict[str, Callable[[], str]] = {
    "published": summary,
    "published/zen-5": partial(elsewhere, "published/zen-5"),
    "published/headlines": headlines,
    "published/shares": where_time_goes,
    f"published/{STEP_ROWS}": step_rows,
    **{f"published/{name}": partial(details, name) for name in rows()},
}
"""What is rendered, by the name between the markers of a page."""

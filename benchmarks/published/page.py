"""The table of docs/published.md from the results: a line a case, ours beside vLLM's best setting."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.benchmark import SHARE
from benchmarks.published.rows import VLLM, Row, rows
from benchmarks.result import NO_RESULT, number, read, shown, table

RATE, SLOWEST = "requests/s", "p99 ms"
PAIRS = ("p50 ms", "p99 ms", SHARE)
HEADS = ("", "Selvage", "vLLM", "times", *PAIRS, "cosine to the model, least")


def summary() -> str:
    """Renders where each row was measured, and a line for each case: our rate beside vLLM's, and both latencies."""
    results = {row.name: (row, result) for row in rows().values() if (result := read(f"published/{row.name}"))}
    lines = [line for row, result in results.values() for line in _lines(row, result)]
    if not lines:
        return NO_RESULT
    places = list(dict.fromkeys(place(result) for _, result in results.values()))
    common = (
        f"Medians (quartiles), measured with {places[0]}." if len(places) == 1 else "Figures are medians (quartiles)."
    )
    rows_conditions = [
        f"- **{name}**: {conditions(result, with_place=len(places) > 1)}" for name, (_, result) in results.items()
    ]
    return "\n\n".join([table(HEADS, lines), common, "\n".join(rows_conditions)])


def _lines(row: Row, result: Mapping[str, Any]) -> Iterator[list[str]]:
    for case in result.get("cases", ()):
        sides, ours = case["sides"], case["ours"]
        figure = SLOWEST if row.latency else RATE
        best = best_of(case, figure)
        if best is None:
            continue
        pairs = [_pair(sides[ours], sides[best], name) for name in PAIRS]
        rates = [f"{number(sides[side][figure]['median'])} {figure}" for side in (ours, best)]
        cosines = " / ".join(f"{_least(result, side):.5f}" for side in (ours, best))
        times = shown(case["ours_over"][best][figure])
        yield [f"{row.name}, {case['case']}", *rates, times, *pairs, cosines]


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
    least: float = next(iter(result["agreement"][side].values()))["least cosine"]
    return least


def place(result: Mapping[str, Any]) -> str:
    """Names the cores that a result was measured on, and the versions of vLLM and what it runs on."""
    machine = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in result["peers"]["vllm"].items())
    return f"{result['settings']['threads']} of {machine['cores']} cores of {machine['processor']}; {versions}"


def conditions(result: Mapping[str, Any], with_place: bool) -> str:
    """States what was asked, the rounds, the commit, the flags of both, and the place where rows differ in it."""
    settings = result["settings"]
    counts = [count for count in settings["requests"].values() if count]
    length = f"{min(counts):,} requests or more" if counts else f"{number(settings['seconds'])} s"
    flags = "; ".join(f"{side}: `{flags}`" for side, flags in settings["flags"].items() if flags)
    parts = [
        f"{result['says']} {settings['rounds']} rounds of {length} a case",
        place(result) if with_place else "",
        f"commit {result['machine']['commit']}",
        flags,
    ]
    return f"{'; '.join(filter(None, parts))}."

"""The table of docs/published.md from the results: a line a case, ours beside vLLM's best setting."""

from collections.abc import Mapping
from typing import Any

from benchmarks.benchmark import SHARE
from benchmarks.published.rows import VLLM, Row, rows
from benchmarks.result import NO_RESULT, number, read, shown, table

RATE, SLOWEST = "requests/s", "p99 ms"
PAIRS = ("p50 ms", "p99 ms", SHARE)
HEADS = ("", "Selvage", "vLLM", "times", *PAIRS, "cosine to the model, least")


def summary() -> str:
    """Renders where each row was measured, and a line for each case: our rate beside vLLM's, and both latencies."""
    lines, places = list[list[str]](), list[str]()
    for row in rows().values():
        if result := read(f"published/{row.name}"):
            lines += filter(None, (_line(row, result, case) for case in result["cases"]))
            places.append(f"- **{row.name}**: {conditions(result)}")
    return "\n\n".join([table(HEADS, lines), "\n".join(places)]) if lines else NO_RESULT


def _line(row: Row, result: Mapping[str, Any], case: Mapping[str, Any]) -> list[str]:
    """Compares ours with the setting of vLLM that has the most of a rate, or the least latency; empty without any."""
    sides, ours, figure = case["sides"], case["ours"], SLOWEST if row.latency else RATE
    theirs = {side: spreads[figure]["median"] for side, spreads in sides.items() if side.startswith(VLLM)}
    if not theirs:
        return []
    best = (min if row.latency else max)(theirs, key=theirs.__getitem__)
    both = sides[ours], sides[best]
    rates = [f"{number(side[figure]['median'])} {figure}" for side in both]
    pairs = [" / ".join(number(side[name]["median"]) for side in both if name in side) for name in PAIRS]
    least = [next(iter(result["agreement"][side].values()))["least cosine"] for side in (ours, best)]
    times, cosines = shown(case["ours_over"][best][figure]), " / ".join(f"{cosine:.5f}" for cosine in least)
    return [f"{row.name}, {case['case']}", *rates, times, *pairs, cosines]


def conditions(result: Mapping[str, Any]) -> str:
    """States what was asked, the machine, the rounds, the commit, the versions of vLLM and its flags."""
    machine, settings = result["machine"], result["settings"]
    counts = [count for count in settings["requests"].values() if count]
    length = f"{min(counts):,} requests or more" if counts else f"{number(settings['seconds'])} s"
    versions = ", ".join(f"{name} {version}" for name, version in result["peers"]["vllm"].items())
    flags = "; ".join(f"{side}: `{flags}`" for side, flags in settings["flags"].items() if flags and VLLM in side)
    parts = [
        f"{result['says']} {settings['threads']} of {machine['cores']} cores of {machine['processor']}",
        f"medians (quartiles) of {settings['rounds']} rounds of {length} a case",
        f"commit {machine['commit']}",
        versions,
        flags,
    ]
    return f"{'; '.join(filter(None, parts))}."

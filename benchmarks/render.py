"""Renders README's table of speed and the tables of docs/measured.md from the results, or checks that they are of them.

What stands between the markers of a page is made here; captions around them are written by hand.
"""

import argparse
import re
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.result import number, read, shown, table, tables
from benchmarks.rounds import SHARE

README, MEASURED = ROOT / "README.md", ROOT / "docs" / "measured.md"
BLOCK = re.compile(r"(<!-- rendered (\S+): begin -->\n).*?(<!-- rendered \2: end -->)", re.DOTALL)
SPEED = "speed"
"""README's block; all others have the name of a benchmark."""


def rendered(page: str) -> str:
    """A page with its blocks made anew."""
    return BLOCK.sub(lambda found: f"{found[1]}{block(found[2])}\n{found[3]}", page)


def block(name: str) -> str:
    """What stands between the markers of that name."""
    if name == SPEED:
        return speed()
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
        if (over := {side: each for side, each in case["ours_over"].items() if _is_peer(name, side)})
    ]
    if not rows:
        return "No result yet."
    heads = ["", "here", "of products alone", "times others"]
    told = dict.fromkeys(f"{where(each)}, commit {each['machine']['commit']}" for each in results.values() if each)
    return f"MiniLM-L6 in float32, medians (quartiles); {'; '.join(told)}.\n\n{table(heads, rows)}"


def _is_peer(name: str, side: str) -> bool:
    return side == "infinity" if name == "services" else not side.startswith("selvage")


def _row(name: str, case: Mapping[str, Any], over: Mapping[str, Any]) -> list[str]:
    """Of a single client the latency is told, of many the rate."""
    single = name == "services" and case["case"].startswith("1 client,")
    figure = {"offline": "tokens/s", "maxsim": "documents/s"}.get(name, "p50 ms" if single else "requests/s")
    ours = case["sides"][case["ours"]]
    what = {"offline": "engine", "maxsim": "MaxSim", "services": "both services"}[name]
    against = "; ".join(f"{shown(each[figure])} x {side}" for side, each in over.items())
    share = f"{number(ours[SHARE]['median'])} %"
    return [f"{what}, {case['case']}", f"{number(ours[figure]['median'])} {figure}", share, against]


def main(given: argparse.Namespace) -> int:
    """1 where a page is not of the results, with --check."""
    pages = {path: rendered(path.read_text()) for path in (README, MEASURED)}
    stale = [path.name for path, content in pages.items() if path.read_text() != content]
    if given.check:
        if stale:
            print(f"{', '.join(stale)}: not rendered from benchmarks/results", file=sys.stderr)
        return int(bool(stale))
    for path, content in pages.items():
        path.write_text(content)
    return 0

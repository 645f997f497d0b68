"""The JSON that every benchmark writes, and its tables for people. One shape for all, so one table fits all."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.benchmark import FORMATS, counterpart, digits_of
from benchmarks.machine import ROOT

RESULTS, NO_RESULT = ROOT / "benchmarks" / "results", "No result yet."
MANY = 10
"""Sides from whose number on a table has a row a side."""


def write(result: Mapping[str, Any], path: Path) -> None:
    """Writes a result, by a draft: the file is whole at any time, even where this process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(result, indent=1) + "\n")
    draft.replace(path)


def read(name: str) -> dict[str, Any]:
    """Reads a result by its benchmark's name; empty where there is none yet."""
    path = RESULTS / f"{name}.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return result


def number(value: float, digits: int = 3) -> str:
    """Formats a number with three digits by default, or all before its point: `2,345`, `23.4`, `0.234`."""
    return f"{value:,.0f}" if value == 0 or abs(value) >= 100 else f"{value:.{digits}g}"


def shown(spread: Mapping[str, float] | None, digits: int = 3) -> str:
    """Formats a median with its quartiles."""
    if spread is None:
        return ""
    median, lower, upper = (number(spread[name], digits) for name in ("median", "lower", "upper"))
    return median if lower == upper else f"{median} ({lower} to {upper})"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Renders a table in Markdown, whose first column is text and all others numbers."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables(result: Mapping[str, Any]) -> str:
    """Renders a table for each case: a column a side, a row a figure, and rows of ours over each other side.

    Where there are many sides, each has a row. Sides that could not run are named first, with their reasons.
    """
    absent = [f"Not measured: {side}: {reason}." for side, reason in result.get("absent", {}).items()]
    return "\n\n".join([*absent, *(f"**{case['case']}**\n\n{_table(case)}" for case in result["cases"])])


def _table(case: Mapping[str, Any]) -> str:
    sides, over = case["sides"], case["ours_over"]
    names = dict.fromkeys(name for side in sides.values() for name in side)
    rows = [[name, *(shown(side.get(name), digits_of(name) - 1) for side in sides.values())] for name in names]
    ratios = dict.fromkeys(name for ratio in over.values() for name in ratio)
    ours = _ours(case)
    rows += [[f"{name}: {ours} over it", *(shown(over.get(side, {}).get(name)) for side in sides)] for name in ratios]
    lines = [["", *sides], *rows]
    if len(sides) > MANY:
        lines = [list(line) for line in zip(*lines, strict=True)]
    return table(lines[0], lines[1:])


def _ours(case: Mapping[str, Any]) -> str:
    """Names our side; where others are compared in several number formats, all of ours."""
    ours: str = case["ours"]
    compared = {counterpart(side, case["sides"], ours) for side in case["ours_over"]}
    return ours if compared <= {ours} else f"{ours.removesuffix(' ' + FORMATS[0])} in its number format"

"""The JSON that every benchmark writes, and its tables for people. One shape for all, so one table fits all."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT

RESULTS = ROOT / "benchmarks" / "results"


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


def number(value: float) -> str:
    """Formats a number with three digits, or all before its point: `2,345`, `23.4`, `0.234`."""
    return f"{value:,.0f}" if value == 0 or abs(value) >= 100 else f"{value:.3g}"


def shown(spread: Mapping[str, float] | None) -> str:
    """Formats a median with its quartiles."""
    if spread is None:
        return ""
    median, lower, upper = (number(spread[name]) for name in ("median", "lower", "upper"))
    return median if lower == upper else f"{median} ({lower} to {upper})"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Renders a table in Markdown, whose first column is text and all others numbers."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables(result: Mapping[str, Any]) -> str:
    """Renders a table for each case: a column a side, a row a figure, and rows of ours over each other side."""
    return "\n\n".join(f"**{case['case']}**\n\n{_table(case)}" for case in result["cases"])


def _table(case: Mapping[str, Any]) -> str:
    sides, over = case["sides"], case["ours_over"]
    names = dict.fromkeys(name for side in sides.values() for name in side)
    rows = [[name, *(shown(side.get(name)) for side in sides.values())] for name in names]
    ratios = dict.fromkeys(name for ratio in over.values() for name in ratio)
    ours = case["ours"]
    rows += [[f"{name}: {ours} over it", *(shown(over.get(side, {}).get(name)) for side in sides)] for name in ratios]
    return table(["", *sides], rows)

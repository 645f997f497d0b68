"""Renders the README's figures and docs/measured.md from the result files, or checks that they are of these files.

A benchmark that has no result file yet has no table.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import tables

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- rendered from benchmarks/results: begin -->", "<!-- rendered: end -->"
Render = Callable[[dict[str, Any]], str]
IN_README: dict[str, Render] = {
    "offline-cpu": tables.offline,
    "maxsim-cpu": tables.maxsim,
    "rerank-cpu": tables.rerank,
    "infinity-cpu": tables.infinity,
}
MEASURED: dict[str, tuple[str, Render]] = {
    "services-cpu": ("Both services under load", tables.services),
    "breakdown-cpu": ("Where the time of a request goes", tables.breakdown),
    "engine-profile-cpu": ("Where the engine's time goes", tables.engine_profile),
    "ablations-cpu": ("Each idea on and off", tables.ablations),
    "repeat-cpu": ("What a second run repeats", tables.repeat),
}


def rendered(readme: str) -> str:
    """The README with its figures."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    shown = "\n\n".join(render(result) for name, render in IN_README.items() if (result := _result(name)))
    return f"{before}{BEGIN}\n{shown}\n{END}{after}"


def measured() -> str:
    """What README has no room for, as a page of its own."""
    parts = ["# Measured", "Rendered from benchmarks/results by `python -m benchmarks.render`; do not edit."]
    for name, (title, render) in MEASURED.items():
        if result := _result(name):
            parts += [f"## {title}", render(result)]
    return "\n\n".join(parts) + "\n"


def _result(name: str) -> dict[str, Any]:
    """Empty where there is no such file."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.render", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args()
    readme, page = ROOT / "README.md", ROOT / "docs" / "measured.md"
    wanted = {readme: rendered(readme.read_text()), page: measured()}
    if arguments.check:
        stale = [path.name for path, content in wanted.items() if not path.is_file() or path.read_text() != content]
        sys.exit(f"{', '.join(stale)}: not rendered from benchmarks/results" if stale else 0)
    for path, content in wanted.items():
        path.write_text(content)

"""Renders the README's figures, docs/measured.md and docs/plots from the result files, or checks that they are of them.

A benchmark that has no result file yet has no table and no plot.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import plots, tables

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
README, PAGE, PICTURES = ROOT / "README.md", ROOT / "docs" / "measured.md", ROOT / "docs" / "plots"
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
    "another-machine/offline-cpu": ("Another machine: the engine", tables.offline),
    "another-machine/engine-profile-cpu": ("Another machine: where the engine's time goes", tables.engine_profile),
    "another-machine/maxsim-cpu": ("Another machine: MaxSim", tables.maxsim),
    "another-machine/infinity-cpu": ("Another machine: both services against Infinity", tables.infinity),
    "accelerator": ("The engine on an accelerator", tables.accelerator),
}


def rendered(readme: str) -> str:
    """The README with its figures."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    shown = "\n\n".join(part for name, render in IN_README.items() for part in _shown(name, render, README))
    return f"{before}{BEGIN}\n{shown}\n{END}{after}"


def measured() -> str:
    """What README has no room for, as a page of its own."""
    parts = ["# Measured", "Rendered from benchmarks/results by `python -m benchmarks.render`; do not edit."]
    for name, (title, render) in MEASURED.items():
        if shown := _shown(name, render, PAGE):
            parts += [f"## {title}", *shown]
    return "\n\n".join(parts) + "\n"


def pictures() -> dict[Path, str]:
    """All plots that there are results for."""
    results = {benchmark: _result(benchmark) for benchmark in {plot.benchmark for plot in plots.PLOTS.values()}}
    return {
        PICTURES / f"{name}.svg": plots.PLOTS[name].svg(result)
        for benchmark, result in results.items()
        for name in plots.of(benchmark, result)
    }


def _shown(name: str, render: Render, page: Path) -> list[str]:
    """A result as its table, and its plots as that page links them; nothing where there is none."""
    if not (result := _result(name)):
        return []
    folder = PICTURES.relative_to(page.parent).as_posix()
    images = [f"![{plots.PLOTS[each].says}]({folder}/{each}.svg)" for each in plots.of(name, result)]
    return [render(result), *images]


def _result(name: str) -> dict[str, Any]:
    """Empty where there is no such file."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.render", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args()
    wanted = {README: rendered(README.read_text()), PAGE: measured()} | pictures()
    old = sorted(set(PICTURES.glob("*.svg")) - set(wanted))
    if arguments.check:
        stale = [path.name for path, content in wanted.items() if not path.is_file() or path.read_text() != content]
        stale += [path.name for path in old]
        sys.exit(f"{', '.join(stale)}: not rendered from benchmarks/results" if stale else 0)
    PICTURES.mkdir(exist_ok=True)
    for path, content in wanted.items():
        path.write_text(content)
    for path in old:
        path.unlink()


if __name__ == "__main__":
    main()

"""Results as pictures: what is in them, and that the same result gives the same bytes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import plots, render, tables

ROOT = Path(__file__).parents[2]
MACHINE = {"processor": "A processor", "cores": 2, "commit": "abc"}


def side(rate: float) -> dict[str, Any]:
    latency = {"p50": 1000 / rate, "p99": 3000 / rate}
    return {"requests_per_second": rate, "tokens_per_second": round(rate * 500), "latency_ms": latency}


def swept() -> dict[str, Any]:
    """Out of order, as no file should be but may."""
    cases = {
        f"{clients} client{'s' * (clients > 1)}, {frontends} frontends": side(clients * 10.0 + frontends)
        | {"frontends": frontends}
        for clients in (16, 1, 4)
        for frontends in (4, 1)
    }
    return {
        "machine": MACHINE,
        "workloads": {
            "clients": {"model": "minilm", "cases": cases},
            "mixed": {"cases": {"closed": side(7.0), "open": side(5.0)}},
        },
    }


def loaded() -> dict[str, Any]:
    cases = [
        {"case": name, "sides": {"selvage": side(100), "Infinity": side(40)}} for name in ("1 client", "64 clients")
    ]
    return {"machine": MACHINE, "model": "all-MiniLM-L6-v2", "threads": 2, "cases": cases}


RESULTS = {"offline-cpu": json.loads((render.RESULTS / "offline-cpu.json").read_text())} | {
    "infinity-cpu": loaded(),
    "services-cpu": swept(),
}
SHOWN = {
    "offline-cpu": ("tokens/s", "selvage float32", "64 texts, lognormal"),
    "infinity-cpu": ("requests/s", "Infinity", "64 clients", "A processor, 2 cores"),
    "clients-scaling": ("requests/s", "clients in a closed loop", "1 frontend", "4 frontends", "16"),
    "clients-latency": ("latency in ms", "tokens/s", "p50, 1 frontend", "p99, 4 frontends", "p50 to p99, mixed: open"),
}


def texts(svg: str) -> str:
    return "\n".join(
        "".join(each.itertext()) for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("text")
    )


@pytest.mark.parametrize("name", plots.PLOTS)
def test_a_plot_names_sides_units_and_machine(name: str) -> None:
    """And has no date."""
    plot = plots.PLOTS[name]
    svg = plot.svg(RESULTS[plot.benchmark])
    told = texts(svg)
    machine = RESULTS[plot.benchmark]["machine"]
    for each in (*SHOWN[name], machine["processor"]):
        assert each in told
    assert "date" not in svg
    assert svg == plot.svg(RESULTS[plot.benchmark])


def test_the_same_bytes_in_another_process() -> None:
    """With another seed of hashes."""
    program = (
        "import json, sys; from benchmarks.plots import PLOTS; "
        "sys.stdout.write(PLOTS['offline-cpu'].svg(json.load(sys.stdin)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(RESULTS["offline-cpu"]),
        env=os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == plots.PLOTS["offline-cpu"].svg(RESULTS["offline-cpu"])


def test_a_sweep_is_drawn_where_it_was_measured_only() -> None:
    """Its points lie in the order of clients."""
    without = {"machine": MACHINE, "workloads": {"short": {}}}
    assert list(plots.of("services-cpu", swept())) == ["clients-scaling", "clients-latency"]
    assert list(plots.of("services-cpu", without)) == list(plots.of("services-cpu", {})) == []
    assert {frontends: list(cases) for frontends, cases in plots._sweep(swept()).items()} == {
        1: [1, 4, 16],
        4: [1, 4, 16],
    }


def test_pages_link_the_plots_that_there_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By paths relative to each page; a benchmark without a result has neither table nor plot."""
    (tmp_path / "offline-cpu.json").write_text(json.dumps(RESULTS["offline-cpu"]))
    monkeypatch.setattr(render, "RESULTS", tmp_path)
    assert [path.name for path in render.pictures()] == ["offline-cpu.svg"]
    page = render.rendered(f"a{render.BEGIN}old{render.END}z")
    assert "](docs/plots/offline-cpu.svg)\n" in page
    assert "old" not in page
    assert "MaxSim" not in page
    assert render.measured().count("\n## ") == 0


def test_an_accelerators_rows_become_a_table() -> None:
    """What failed or was skipped has its line."""
    row = side(1000.0) | {"workload": "short", "in_flight": 64, "share_of_limit": 0.5}
    result = {
        "machine": MACHINE,
        "limits": {"device": "X", "torch": "2", "flops_per_second": 790e12, "bytes_per_second": 4.3e12},
        "goals": {"device": "Y", "published_by": "vLLM"},
        "rows": [
            row | {"published": {"requests_per_second": 1089}, "goal": {"p99_ms": 220}, "goal_met": True},
            {"workload": "one", "error": "no room"},
            {"workload": "two", "skipped": "no time"},
        ],
    }
    *_, head, line, short, failed, skipped = tables.accelerator(result).splitlines()
    assert {each.count("|") for each in (head, line, short, failed, skipped)} == {11}
    assert "| 50% | 1,089 req/s | 220 ms p99 | yes |" in short
    assert "failed: no room" in failed
    assert "skipped: no time" in skipped
    assert "limits were not measured" in tables.accelerator(result | {"limits": {}})

"""Pages against results."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import render, result
from benchmarks.__main__ import parser
from benchmarks.accelerator import page as accelerator
from benchmarks.benchmark import SHARE
from benchmarks.published import page as published


@pytest.mark.parametrize("page", render.PAGES, ids=lambda page: str(page.relative_to(render.ROOT)))
def test_pages_are_of_the_results(page: Path) -> None:
    """Rendered again they are the same, to the byte."""
    assert render.rendered(page.read_text()) == page.read_text()


def test_a_page_shows_every_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would find the meaning of a file that no page shows."""
    shown = set[str]()

    def read(name: str) -> dict[str, Any]:
        shown.add(name)
        return result.read(name)

    for module in (render, accelerator, published):
        monkeypatch.setattr(module, "read", read)
    for path in render.PAGES:
        render.rendered(path.read_text())
    paths = result.RESULTS.rglob("*.json")
    assert {str(path.relative_to(result.RESULTS).with_suffix("")) for path in paths} <= shown


def test_only_what_stands_between_markers_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a result it says so."""
    monkeypatch.setattr(render, "read", lambda name: {})
    page = "by hand\n<!-- rendered engine: begin -->\nold\n<!-- rendered engine: end -->\nby hand too\n"
    assert render.rendered(page) == page.replace("old", "No result yet.")


def test_a_row_of_the_summary_has_the_rate_the_share_and_each_peer() -> None:
    """A single client is compared by latency."""
    spread = {"median": 0.5, "lower": 0.4, "upper": 0.6}
    case: dict[str, Any] = {
        "case": "1 client, 16 tokens",
        "ours": "selvage",
        "sides": {"selvage": {"p50 ms": {"median": 12.3}, "requests/s": {"median": 80.0}, SHARE: {"median": 15.0}}},
        "ours_over": {name: {"p50 ms": spread, "requests/s": spread} for name in ("infinity", "engine alone")},
    }
    row = render._summary_row("services", case)
    assert row == ["12.3 p50 ms", "15 %", "0.5 (0.4 to 0.6) x infinity"]
    assert render._summary_row("services", {**case, "case": "64 clients, 16 tokens"})[0] == "80 requests/s"


def test_the_speed_table_names_the_fastest_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ratio is the median of the rounds' ratios; sides that are ours, and cases that are not listed, stay out."""
    rates = {"selvage": 48_360.0, "PyLate rank.rerank": 8_395.0, "maxsim-cpu": 31_860.0, "engine alone": 90_000.0}
    case: dict[str, Any] = {
        "case": "1,000 documents",
        "ours": "selvage",
        "sides": {side: {"documents/s": {"median": rate}} for side, rate in rates.items()},
        "ours_over": {side: {"documents/s": {"median": 48_000 / rate}} for side, rate in rates.items()},
    }
    machine = {"processor": "A Processor (family 1)", "cores": 2, "commit": "abc"}
    measured = {"machine": machine, "cases": [case, {**case, "case": "250 documents"}]}
    monkeypatch.setattr(render, "read", lambda name: measured if name == "maxsim" else {})
    assert render.speed().splitlines() == [
        "MiniLM-L6 in float32 on A Processor (family 1), 2 cores (commit abc).",
        "",
        "| workload | Selvage | best other | times |",
        "| --- | ---: | ---: | ---: |",
        "| MaxSim, 1,000 documents | 48,360 documents/s | maxsim-cpu: 31,860 documents/s | 1.51 |",
    ]
    other = {"machine": {**machine, "processor": "A(R) Processor (family 2, avx)"}, "cases": []}
    monkeypatch.setattr(render, "read", lambda name: {"maxsim": measured, "services": other}.get(name, {}))
    assert "| MaxSim, 1,000 documents, A Processor (family 1) | 48,360 " in render.speed()
    assert "A Processor (family 2), 2 cores (commit abc)" in render.speed()


def test_the_limits_are_those_of_a_number_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products alone over the fastest other product; a format without another product is left out."""
    rates = {"selvage float32": 10.0, "products alone": 30.0, "slow": 5.0, "fast, best batch": 20.0}
    rates |= {
        "selvage int8": 40.0,
        "products alone, int8": 60.0,
        "fast int8, best batch": 50.0,
        "selvage bfloat16": 1.0,
    }
    case: dict[str, Any] = {
        "case": "a text",
        "ours": "selvage float32",
        "sides": {side: {"tokens/s": {"median": rate}} for side, rate in rates.items()},
        "ours_over": {
            "fast, best batch": {"tokens/s": {"median": 0.51}},
            "fast int8, best batch": {"tokens/s": {"median": 0.81}},
        },
    }
    settings = {"threads": 2, "rounds": 3, "starts": 1}
    machine = {"processor": "A Processor", "cores": 2, "commit": "abc"}
    measured = {"machine": machine, "settings": settings, "peers": {}, "cases": [case]}
    monkeypatch.setattr(render, "read", lambda name: measured if name == "offline" else {})
    assert render.limits().splitlines()[4:] == [
        "| a text, float32 | 10 | fast, best batch: 20 | 30 | 0.51 | 1.5 |",
        "| a text, int8 | 40 | fast: 50 | 60 | 0.81 | 1.2 |",
    ]


def test_every_benchmark_teaches_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` of each name prints what it compares, whatever it needs to run."""
    names = ("offline", "engine", "maxsim", "services", "rankings", "load", "accelerator", "published", "render")
    for name in names:
        with pytest.raises(SystemExit, match="0"):
            parser().parse_args([name, "--help"])
        assert len(capsys.readouterr().out) > 300

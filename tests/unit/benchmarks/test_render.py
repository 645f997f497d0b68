"""Pages against results."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import render
from benchmarks.__main__ import parser
from benchmarks.rounds import SHARE


@pytest.mark.parametrize("page", [render.README, render.MEASURED, render.ACCELERATOR], ids=lambda page: page.name)
def test_pages_are_of_the_results(page: Path) -> None:
    """Made anew they are the same, to the byte."""
    assert render.rendered(page.read_text()) == page.read_text()


def test_every_frozen_result_is_linked_and_names_its_commit() -> None:
    """A file that no caption speaks of says nothing."""
    folder = render.ROOT / "benchmarks" / "results" / "frozen"
    for path in folder.glob("*.json"):
        assert f"frozen/{path.name}" in render.MEASURED.read_text()
    for path in folder.rglob("*.json"):
        assert path.stem.endswith(json.loads(path.read_text())["machine"]["commit"])


def test_only_what_stands_between_markers_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a result it says so."""
    monkeypatch.setattr(render, "read", lambda name: {})
    page = "by hand\n<!-- rendered engine: begin -->\nold\n<!-- rendered engine: end -->\nby hand too\n"
    assert render.rendered(page) == page.replace("old", "No result yet.")


def test_a_row_of_speed_tells_the_rate_the_share_and_each_peer() -> None:
    """Of a single client the latency."""
    spread = {"median": 0.5, "lower": 0.4, "upper": 0.6}
    case: dict[str, Any] = {
        "case": "1 client, 16 tokens",
        "ours": "selvage",
        "sides": {"selvage": {"p50 ms": {"median": 12.3}, "requests/s": {"median": 80.0}, SHARE: {"median": 15.0}}},
    }
    over = {"infinity": {"p50 ms": spread, "requests/s": spread}}
    row = render._row("services", case, over)
    assert row == ["both services, 1 client, 16 tokens", "12.3 p50 ms", "15 %", "0.5 (0.4 to 0.6) x infinity"]
    assert render._row("services", {**case, "case": "64 clients, 16 tokens"}, over)[1] == "80 requests/s"


def test_every_benchmark_teaches_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` of each name prints what it compares, whatever it needs to run."""
    for name in ("offline", "engine", "maxsim", "services", "load", "accelerator", "render"):
        with pytest.raises(SystemExit, match="0"):
            parser().parse_args([name, "--help"])
        assert len(capsys.readouterr().out) > 300

"""Pages against results."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import render, result, scaling_page
from benchmarks.__main__ import parser
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

    for module in (render, scaling_page, published):
        monkeypatch.setattr(module, "read", read)
    for path in render.PAGES:
        render.rendered(path.read_text())
    paths = result.RESULTS.rglob("*.json")
    assert {str(path.relative_to(result.RESULTS).with_suffix("")) for path in paths} <= shown


def test_every_benchmark_teaches_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` of each name prints what it compares, whatever it needs to run."""
    names = ("offline", "engine", "maxsim", "services", "rankings", "load", "accelerator", "published", "render")
    for name in names:
        with pytest.raises(SystemExit, match="0"):
            parser().parse_args([name, "--help"])
        assert len(capsys.readouterr().out) > 300

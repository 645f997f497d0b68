"""Pages against results, and the arithmetic between."""

from typing import Any

import pytest

from benchmarks import render, result
from benchmarks.__main__ import COMMANDS, ROUNDS, parser
from benchmarks.accelerator import page as accelerator
from benchmarks.published import page as published
from benchmarks.render import CPU, GRPC, LISTS, LONG_LISTS, SHORT


def test_pages_are_of_the_results_and_show_every_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendered again they are the same, to the byte. Nobody would find the meaning of a file that no page shows."""
    shown = set[str]()

    def read(name: str) -> dict[str, Any]:
        shown.add(name)
        return result.read(name)

    for module in (render, accelerator, published):
        monkeypatch.setattr(module, "read", read)
    pages = {page: (render.ROOT / page).read_text() for page in render.PAGES}
    assert [page for page, text in pages.items() if render.rendered(text) != text] == []
    paths = result.RESULTS.rglob("*.json")
    assert {str(path.relative_to(result.RESULTS).with_suffix("")) for path in paths} <= shown


def test_only_what_stands_between_markers_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a result every block says so."""
    for module in (render, accelerator, published):
        monkeypatch.setattr(module, "read", lambda name: {})
    for name in ("engine", *render.BLOCKS):
        page = f"by hand\n<!-- rendered {name}: begin -->\nold\n<!-- rendered {name}: end -->\nby hand too\n"
        assert render.rendered(page) == page.replace("old", "No result yet.")


def case_of(name: str, rates: dict[str, float], figure: str, over: dict[str, float]) -> dict[str, Any]:
    return {
        "case": name,
        "ours": next(iter(rates)),
        "sides": {side: {figure: {"median": rate}} for side, rate in rates.items()},
        "ours_over": {side: {figure: {"median": ratio}} for side, ratio in over.items()},
    }


def test_the_speed_table_names_the_fastest_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ratio is the median of the rounds' ratios; sides that are ours, and cases that are not listed, stay out."""
    rates = {"selvage": 48_360.0, "PyLate rank.rerank": 8_395.0, "maxsim-cpu": 31_860.0, "engine alone": 90_000.0}
    ratios = {side: 48_000 / rate for side, rate in rates.items()}
    cases = [case_of(name, rates, "documents/s", ratios) for name in ("1,000 documents", "250 documents")]
    machine = {"processor": "A Processor", "cores": 2, "commit": "abc"}
    measured = {"machine": machine, "settings": {"threads": 2}, "cases": cases}
    monkeypatch.setattr(render, "read", lambda name: measured if name == "maxsim" else {})
    where, _, _, _, *rows = render.speed().splitlines()
    assert "MaxSim on 2 threads of A Processor, 2 cores, commit abc" in where
    assert rows == ["| MaxSim, 1,000 documents | 48,360 documents/s | maxsim-cpu: 31,860 documents/s | 1.51 |"]


def test_the_limits_are_those_of_a_number_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products alone over the fastest other product; a format without another product is left out."""
    rates = {"selvage float32": 10.0, "products alone": 30.0, "slow": 5.0, "fast, best batch": 20.0}
    rates |= {"selvage int8": 40.0, "products alone, int8": 60.0, "fast int8, best batch": 50.0}
    rates |= {"selvage bfloat16": 1.0}
    case = case_of("a text", rates, "tokens/s", {"fast, best batch": 0.51, "fast int8, best batch": 0.81})
    settings = {"threads": 2, "rounds": 3, "starts": 1}
    machine = {"processor": "A Processor", "cores": 2, "commit": "abc"}
    measured = {"machine": machine, "settings": settings, "peers": {}, "cases": [case]}
    monkeypatch.setattr(render, "read", lambda name: measured)
    assert render.limits().splitlines()[4:] == [
        "| a text, float32 | 10 | fast, best batch: 20 | 30 | 0.51 | 1.5 |",
        "| a text, int8 | 40 | fast int8, best batch: 50 | 60 | 0.81 | 1.2 |",
    ]


def test_costs_of_a_frontend_are_solved_from_three_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """By request, by text and by token. 100,000 tokens/s are 781 requests/s of 128 tokens, of 0.648 ms each, on cores
    that are used to 70 %."""
    cost = (0.5, 0.02, 0.001)
    sizes = {SHORT: (1, 16), LISTS: (32, 16), LONG_LISTS: (32, 128)}
    figures = {case: 0.5 + texts * 0.02 + texts * tokens * 0.001 for case, (texts, tokens) in sizes.items()}
    cases = [case_of(case, {GRPC: spent}, f"frontend: {CPU}", {}) for case, spent in figures.items()]
    monkeypatch.setattr(render, "read", {"frontends": {"cases": cases}}.get)
    assert render.frontend_cost() == pytest.approx(cost)
    assert render.frontends_needed(100_000, 1, 128, cost) == pytest.approx(781.25 * 0.648e-3 / 0.7)


def test_every_benchmark_teaches_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` of each name prints what it compares, whatever it needs to run."""
    for name in (*ROUNDS, *COMMANDS):
        with pytest.raises(SystemExit, match="0"):
            parser().parse_args([name, "--help"])
        assert len(capsys.readouterr().out) > 300

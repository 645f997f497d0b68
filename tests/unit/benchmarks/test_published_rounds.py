"""The published tables: rounds of all sides, and what is told of them. Servers are fakes over HTTP."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.__main__ import parser
from benchmarks.load.processor import is_running
from benchmarks.machine import ROOT
from benchmarks.published import comparison, driver, models, page, run, servers, splitting, turns
from benchmarks.published.row import OURS, Case, Row
from benchmarks.published.rows import rows
from benchmarks.published.servers import Launch, ReadyServer
from benchmarks.published.turns import Trial
from benchmarks.rounds import ALONE, SHARE
from support.published import CASE, ROW, fake


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "MODELS", tmp_path)
    monkeypatch.setattr(models, "MODELS", tmp_path)


def test_a_row_is_measured_in_rounds_with_a_start_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures have both sides, their ratio, memory, and the seconds to ready. They are there after each round."""
    monkeypatch.setattr(run, "launches", lambda row, cores: {name: fake("rows") for name in (OURS, "vLLM")})
    monkeypatch.setattr(run, "reference", lambda row, folder: [np.array([[5, 1]]), np.array([[9, 1]])])
    monkeypatch.setattr(
        turns,
        "clients",
        lambda *_: {"requests/s": 5.0, "tokens/s": 9e9, "fake: CPU ms/request": 1.0, "fake: peak MiB": 9.0},
    )
    monkeypatch.setattr(run.products, "PRODUCT", (64, 32, 32))
    monkeypatch.setattr(turns, "PAUSE", 0)
    options = run.RunOptions(scale="small", rounds=2, seconds=1.0, cores=[0], sides=[OURS, "vLLM"])
    first, told = run.measured(ROW, options)
    assert [kept["settings"]["rounds"] for kept in (first, told)] == [1, 2]
    (case,) = told["cases"]
    assert list(case["sides"]) == [OURS, "vLLM", ALONE]
    limit = case["sides"][ALONE]["tokens/s"]["median"]  # of products of a few microseconds; no token is as cheap
    assert 1e3 < limit < 9e9
    assert case["sides"]["vLLM"][SHARE]["lower"] > 100
    assert case["ours_over"]["vLLM"]["requests/s"]["median"] == 1
    assert case["sides"]["vLLM"]["start to ready, s"]["median"] > 0
    assert case["sides"]["vLLM"]["server: MiB at rest"]["median"] > 1
    assert told["agreement"]["vLLM"][comparison.REFERENCE]["least cosine"] == pytest.approx(1)
    assert set(told["cold start, s"]) == {OURS, "vLLM"}
    assert str(ROOT) not in json.dumps(told)


def test_sides_are_loaded_together_and_asked_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--together`: each starts once, in each case they take turns, backwards in every other round, and one that does
    not start is left out."""
    sides = {OURS: fake("rows"), "broken": replace(fake("rows"), programs={"broken": ["false"]}), "vLLM": fake("rows")}
    asked: list[tuple[str, str]] = []
    numbers: list[int] = []

    def clients(trial: Trial, of: Case, side: str, server: ReadyServer, number: int) -> dict[str, float]:
        assert all(is_running(pid) for pid in pids.values())
        assert sides[side].url == server.url
        asked.append((of.name, side))
        numbers.append(number)
        return {"requests/s": 5.0, "fake: CPU ms/request": 1.0, "fake: peak MiB": 9.0}

    def introduce(trial: Trial, side: str, server: ReadyServer) -> None:
        pids[side] = server.pids["fake"]

    pids: dict[str, int] = {}
    monkeypatch.setattr(run, "launches", lambda row, cores: sides)
    monkeypatch.setattr(run, "reference", lambda row, folder: [])
    monkeypatch.setattr(run.products, "PRODUCT", (64, 32, 32))
    monkeypatch.setattr(turns, "clients", clients)
    monkeypatch.setattr(turns, "introduce", introduce)
    row = replace(ROW, cases=(CASE, replace(CASE, name="more")))
    options = run.RunOptions(scale="small", rounds=2, seconds=1.0, cores=[0], sides=list(sides), together=True)
    *_, told = run.measured(row, options)
    assert asked == [(case, side) for case in ("2 clients", "more") for side in (OURS, "vLLM")] + [
        (case, side) for case in ("2 clients", "more") for side in ("vLLM", OURS)
    ]
    assert numbers == [0] * 4 + [1] * 4
    assert list(pids) == [OURS, "vLLM"]
    assert not any(is_running(pid) for pid in pids.values())
    assert told["settings"]["starts"] == 1
    assert told["absent"] == {"broken": "fake, broken: broken ended with 1"}
    assert [list(case["sides"]) for case in told["cases"]] == [[OURS, "vLLM"], [OURS, "vLLM"]]


def test_a_side_that_is_not_there_is_named_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything starts."""
    monkeypatch.setattr(run, "launches", lambda row, cores: {OURS: None, "vLLM": None})
    options = run.RunOptions(scale="small", rounds=1, seconds=1.0, cores=[0], sides=["vLLM, twice"])
    with pytest.raises(SystemExit, match="--side = 'vLLM, twice': there are 'selvage', 'vLLM'"):
        next(run.measured(ROW, options))


def test_sides_without_ours_are_refused_and_what_is_kept_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is measured: no case would be left, over the cases of an earlier run."""
    names = [OURS, f"{OURS}, 4 frontends", "vLLM"]
    monkeypatch.setattr(run, "launches", lambda row, cores: dict.fromkeys(names))
    monkeypatch.setattr(run, "reference", lambda *_: pytest.fail("something was computed"))
    kept = tmp_path / "dense.json"
    kept.write_text("kept")
    arguments = parser().parse_args(["published", "--row", "dense", "--side", "vLLM", "--out", str(tmp_path)])
    assert run.main(arguments) == 1
    said = "--side = 'vLLM': a case compares with ours, so one of 'selvage', 'selvage, 4 frontends' must be named"
    assert said in capsys.readouterr().err
    assert kept.read_text() == "kept"


def test_a_peer_that_does_not_start_is_absent_and_ours_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With its reason; where ours does not start the row fails."""
    broken = Launch(programs={"broken": [sys.executable, "-c", "raise SystemExit(3)"]}, url=fake("rows").url)
    monkeypatch.setattr(run, "reference", lambda row, folder: [np.array([[5, 1]]), np.array([[9, 1]])])
    monkeypatch.setattr(
        turns, "clients", lambda *_: {"requests/s": 5.0, "fake: CPU ms/request": 1, "fake: peak MiB": 9}
    )
    monkeypatch.setattr(run.products, "PRODUCT", (64, 32, 32))
    monkeypatch.setattr(turns, "PAUSE", 0)
    monkeypatch.setattr(run, "launches", lambda row, cores: {OURS: fake("rows"), "vLLM": broken})
    options = run.RunOptions(scale="small", rounds=1, seconds=1.0, cores=[0], sides=[OURS, "vLLM"])
    (told,) = run.measured(ROW, options)
    assert list(told["cases"][0]["sides"]) == [OURS]
    assert told["absent"]["vLLM"] == "fake, vLLM: broken ended with 3"
    monkeypatch.setattr(run, "launches", lambda row, cores: {OURS: broken})
    with pytest.raises(SystemExit, match="broken ended with 3"):
        next(run.measured(ROW, replace(options, sides=[OURS])))


def test_a_case_that_fails_leaves_out_its_side_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other cases of the side are kept."""

    def clients(trial: Trial, case: Case, side: str, *_: object) -> dict[str, float]:
        if case.name == "huge" and side == "vLLM":
            sys.exit("huge: the clients ended with 1")
        return {"requests/s": 5.0, "fake: CPU ms/request": 1, "fake: peak MiB": 9}

    row = replace(ROW, cases=(CASE, replace(CASE, name="huge")))
    monkeypatch.setattr(run, "launches", lambda row, cores: {name: fake("rows") for name in (OURS, "vLLM")})
    monkeypatch.setattr(run, "reference", lambda row, folder: [np.array([[5, 1]]), np.array([[9, 1]])])
    monkeypatch.setattr(turns, "clients", clients)
    monkeypatch.setattr(run.products, "PRODUCT", (64, 32, 32))
    monkeypatch.setattr(turns, "PAUSE", 0)
    options = run.RunOptions(scale="small", rounds=1, seconds=1.0, cores=[0], sides=[OURS, "vLLM"])
    (told,) = run.measured(row, options)
    assert [list(case["sides"]) for case in told["cases"]] == [[OURS, "vLLM"], [OURS]]
    assert told["absent"] == {"vLLM, huge": "huge: the clients ended with 1"}


def result_of(figure: str, values: dict[str, float]) -> dict[str, Any]:
    spreads = {name: {"median": 1.0, "lower": 1.0, "upper": 1.0} for name in ("requests/s", "p50 ms", "p99 ms")}
    sides = {side: spreads | {figure: {"median": value}} for side, value in values.items()}
    over = {side: spreads | {figure: {"median": 2.0, "lower": 2.0, "upper": 2.0}} for side in values if side != OURS}
    agreement = {side: {comparison.REFERENCE: {"least cosine": 0.999}} for side in values}
    return {"agreement": agreement, "cases": [{"case": "alone", "ours": OURS, "sides": sides, "ours_over": over}]}


@pytest.mark.parametrize(
    ("name", "figure", "best"), [("dense", "requests/s", "9"), ("short-beside-long", "p99 ms", "4")]
)
def test_a_line_compares_with_the_best_setting_of_vllm(
    name: str, figure: str, best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The most requests a second, or the least latency."""
    result = result_of(figure, {OURS: 8.0, "vLLM": 4.0, "vLLM, all cores": 9.0})
    monkeypatch.setattr(page, "read", lambda wanted: result if wanted == f"published/{name}" else {})
    (line,) = page.summary().splitlines()[2:]
    assert f"| {name}, alone | 8 {figure} | {best} {figure} (vLLM" in line
    assert "| 0.99900 / 0.99900 |" in line
    assert page.details("clients") == "No result yet."


def test_results_of_another_processor_come_with_their_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where and how each row was measured stands before its lines."""
    result = result_of("requests/s", {OURS: 8.0, "vLLM": 4.0}) | {
        "benchmark": "published/dense",
        "machine": {"cores": 4, "processor": "Zen 5", "commit": "abc"},
        "settings": {
            "threads": 2,
            "rounds": 3,
            "together": True,
            "seconds": 9.0,
            "scale": "small",
            "flags": {},
            "preloaded in vLLM": [],
        },
        "peers": {"vllm": {"vllm": "1.2"}},
    }
    monkeypatch.setattr(page, "read", lambda wanted: result if wanted == "published/zen-5/dense" else {})
    conditions, lines = page.elsewhere("published/zen-5").split("\n\n")
    assert conditions.startswith("- dense: 2 of 4 cores of Zen 5; medians (quartiles) of 3 rounds, all servers loaded")
    assert "| dense, alone | 8 requests/s | 4 requests/s (vLLM) |" in lines
    assert page.elsewhere("published/zen-4") == page.NO_RESULT


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ({}, "9 s"),
        ({"a": 0, "b": 0}, "9 s"),
        ({"a": 16, "b": 16}, "16 requests"),
        ({"a": 0, "b": 2, "c": 1}, "9 s or 1 to 2 requests"),
    ],
)
def test_conditions_tell_how_long_a_case_is_asked(counts: dict[str, int], says: str) -> None:
    """For seconds, or until so many requests are answered."""
    settings = {"threads": 2, "rounds": 1, "seconds": 9.0, "scale": "small", "flags": {}, "preloaded in vLLM": []}
    told = page.conditions(
        {
            "machine": {"cores": 2, "processor": "Zen 5", "commit": "abc"},
            "settings": settings | {"requests": counts},
            "peers": {"vllm": {}},
        }
    )
    assert f"; {says} a case;" in told


@pytest.mark.parametrize(("counted", "short"), [(0, 0), (16, 2), (1, 1)])
def test_a_short_row_has_its_first_case_and_two_requests_at_most(counted: int, short: int) -> None:
    """Where requests are counted; seconds stay."""
    row = replace(ROW, cases=(CASE.asking(counted), replace(CASE, name="more")))
    assert row.short().cases == (CASE.asking(short),)


def test_a_short_row_asks_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients, in a process of their own, know the row by its name alone, and so ask by the count they are told."""
    row = rows()["token-embeddings"].short()
    (case,), driven = row.cases, []

    async def drive(whole: Row, of: Case, *how: Any) -> dict[str, float]:
        driven.append((whole.name, of, how[-1]))
        return {}

    def in_this_process(command: list[str], **_: object) -> "subprocess.CompletedProcess[str]":
        assert driver.main(command[-1]) == 0
        return subprocess.CompletedProcess(command, 0, stdout="{}")

    monkeypatch.setattr(driver, "drive", drive)
    monkeypatch.setattr(turns.subprocess, "run", in_this_process)
    trial = Trial(row=row, sides={OURS: fake("rows")}, seconds=1.0, scale="small", model=[])
    turns.clients(trial, case, OURS, ReadyServer(url="", pids={}, seconds=0.0, rest={}), number=2)
    assert driven == [("token-embeddings", case, 2)]
    assert case.stream.requests == 2


@pytest.mark.parametrize(
    ("requests", "together", "says"),
    [
        (0, False, "a round takes about 8 minutes, all some 23"),  # two sides of 150 s, a fifth more for their clients
        (0, True, "a round takes about 6 minutes, all some 20"),  # both start once
        (4, True, "a round takes about 3 minutes, all some 12"),  # 28 tokens at half of 0.56 a second
    ],
)
def test_the_estimate_counts_starts_and_what_a_case_is_asked(requests: int, together: bool, says: str) -> None:
    """Seconds where a case has no count of requests, else the tokens of these."""
    row, sides = replace(ROW, cases=(CASE.asking(requests),)), {OURS: fake("rows"), "vLLM": fake("rows")}
    options = run.RunOptions(scale="small", rounds=3, seconds=150.0, cores=[0], sides=list(sides), together=together)
    assert run.estimate(row, sides, 150.0, 0.56, options) == says


def test_a_row_that_fails_is_told_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that does not start ends its row; a signal ends everything."""

    def measured(row: Row, options: run.RunOptions) -> Iterator[dict[str, Any]]:
        if row.name == "dense":
            sys.exit("vLLM was not ready")
        if row.name == "clients":
            raise ValueError("the texts have 9 tokens")
        return iter([{"says": row.says, "cases": [], "rounds": options.rounds}])

    monkeypatch.setattr(run, "measured", measured)
    monkeypatch.setattr(run, "launches", lambda row, cores: {OURS: None})
    names = [part for name in ("dense", "clients", "short-texts") for part in ("--row", name)]
    arguments = parser().parse_args(["published", *names, "--rounds", "2", "--out", str(tmp_path)])
    assert run.main(arguments) == 1
    printed = capsys.readouterr().err
    assert "dense: vLLM was not ready" in printed
    assert "clients: ValueError" in printed
    assert [path.name for path in tmp_path.glob("*.json")] == ["short-texts.json"]
    assert json.loads((tmp_path / "short-texts.json").read_text())["rounds"] == 2
    monkeypatch.setattr(run, "measured", lambda *_: sys.exit(143))
    with pytest.raises(SystemExit, match="143"):
        run.main(arguments)


def test_a_short_run_measures_three_rows_on_two_sides_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`--quick`: one round."""
    seen: list[tuple[str, run.RunOptions]] = []

    def measured(row: Row, options: run.RunOptions) -> Iterator[dict[str, Any]]:
        seen.append((row.name, options))
        return iter([{"says": row.says, "cases": []}])

    monkeypatch.setattr(run, "measured", measured)
    monkeypatch.setattr(run, "launches", lambda row, cores: {})
    assert run.main(parser().parse_args(["published", "--quick", "--together", "--out", str(tmp_path)])) == 0
    assert all(options.together for *_, options in seen)
    assert [(name, options.rounds, options.sides) for name, options in seen] == [
        (name, 1, [OURS, "vLLM, all cores"]) for name in run.QUICK
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_step_s_rows_are_cut_in_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ours in both ways; vLLM's by its own Python, which is told the same sizes."""
    seen: list[list[int]] = []
    monkeypatch.setattr(splitting.ours, "SPLIT_SECONDS", 0.01)
    monkeypatch.setattr(splitting, "_vllm", lambda lengths: seen.append(lengths) or 30.0)
    arguments = parser().parse_args(["published", "--row", "step-rows", "--rounds", "1", "--out", str(tmp_path)])
    assert run.main(arguments) == 0
    told = json.loads((tmp_path / "step-rows.json").read_text())
    assert seen == list(splitting.LENGTHS.values())
    for case in told["cases"]:
        assert case["sides"]["vLLM"]["us"]["median"] == 30
        assert all(case["sides"][side]["us"]["median"] > 0 for side in splitting.SIDES)
    monkeypatch.setattr(page, "read", lambda wanted: told if wanted == "published/step-rows" else {})
    assert "PR 41163" in page.step_rows()
    assert page.headlines() == page.NO_RESULT

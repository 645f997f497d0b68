"""What `benchmarks.infinity` sends, compares and reports, with servers that are not there."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outcomes import outcome_of

from benchmarks import infinity, minilm, render, tables
from benchmarks.infinity import LOADS, OURS, PEER, Goal, agreement, case_of
from benchmarks.load.generator import LoadFailed
from benchmarks.peers.infinity import Served
from benchmarks.peers.venv import Venv
from benchmarks.servers import Infinity

THROUGHPUT, LATENCY = Goal(figure="requests/s", at_least=2.5), Goal(figure="p50", at_most=1 / 3)


def served() -> Served:
    return Served(address="http://127.0.0.1:1", folder=minilm.folder(), pid=1, longest=256)


def figures(rate: float, p50: float) -> dict[str, Any]:
    own = {"requests_per_second": rate, "latency_ms": {"p50": p50}}
    return own | {"rounds": [own, own]}


def rows_of(*angles: float) -> np.ndarray:
    return np.array([[np.cos(angle), np.sin(angle)] for angle in angles], dtype=np.float32)


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_both_sides_count_the_same_tokens(load: infinity.Load) -> None:
    """Those that the texts were made to have, one text a request, as base64."""
    prepared = Infinity(served(), PEER).prepared(load.texts(1), load.tokens)
    assert {each.tokens for each in prepared} == {load.tokens}
    asked = [json.loads(each.body) for each in prepared]
    assert [each["input"] for each in asked] == [[text] for text in load.texts(1)]
    assert {each["encoding_format"] for each in asked} == {"base64"}


def test_a_text_of_other_tokens_is_refused() -> None:
    """A peer's replies do not tell, so nothing else would notice."""
    with pytest.raises(ValueError, match="does not make 16 tokens"):
        Infinity(served(), PEER).prepared(["a harbour"], 16)


def test_vectors_that_differ_are_refused() -> None:
    """Within 1e-5 they are the same."""
    told = agreement(rows_of(0.1, 0.2), rows_of(0.1, 0.200001))
    assert told["texts"] == 2
    assert told["lowest_cosine"] == 1
    with pytest.raises(ValueError, match="vectors differ"):
        agreement(rows_of(0.1, 0.2), rows_of(0.1, 0.2001))
    with pytest.raises(ValueError, match="vectors differ"):
        agreement(rows_of(0.1, 0.2), rows_of(0.1, np.nan))


@pytest.mark.parametrize(
    ("goal", "ours", "theirs", "ratio", "met"),
    [
        (THROUGHPUT, figures(250, 1), figures(100, 1), 2.5, True),
        (THROUGHPUT, figures(240, 1), figures(100, 1), 2.4, False),
        (LATENCY, figures(1, 3), figures(1, 9), 0.333, True),
        (LATENCY, figures(1, 4), figures(1, 9), 0.444, False),
    ],
)
def test_a_goal_is_held_against_the_ratio(
    goal: Goal, ours: dict[str, Any], theirs: dict[str, Any], ratio: float, met: bool
) -> None:
    """Ours over theirs, at least or at most."""
    judged = goal.judged(ours, theirs)
    assert (judged["ratio"], judged["rounds"], judged["met"]) == (ratio, [ratio, ratio], met)


def test_a_ratio_is_that_of_neighbours_in_time() -> None:
    """The geometric mean of each round's own: a slow minute is both sides'."""
    ours = figures(100, 1) | {"rounds": [figures(rate, 1) for rate in (100, 100, 200)]}
    theirs = figures(100, 1) | {"rounds": [figures(rate, 1) for rate in (50, 100, 50)]}
    assert THROUGHPUT.judged(ours, theirs)["ratio"] == 2


def test_a_round_without_an_answer_is_named() -> None:
    """It has no ratio, whatever the others have."""
    outcomes = {OURS: [outcome_of(90, 1.0, {})] * 2, PEER: [outcome_of(30, 1.0, {}), outcome_of(0, 1.0, {})]}
    with pytest.raises(LoadFailed, match="64 clients, 128 tokens: Infinity: a round without an answer; give more"):
        case_of(LOADS[0], outcomes)


def result_of() -> dict[str, Any]:
    """As `measure` gives it, of two sides."""
    outcomes = {OURS: [outcome_of(90, 1.0, {})], PEER: [outcome_of(30, 1.0, {}, errors=2)]}
    null = {"times_measured": 41.0}
    return {
        "rounds": 1,
        "seconds": 5.0,
        "threads": 2,
        "batch_size": 32,
        "counted": "geometric mean",
        "machine": {"processor": "a processor", "cores": 2},
        "peer": {"infinity-emb": "1", "torch": "2", "transformers": "3"},
        "cases": [case_of(load, outcomes) for load in LOADS],
        "null_server": {OURS: null, PEER: null},
    }


def test_the_table_has_every_case_with_its_goal() -> None:
    """Requests that failed are told, since they flatter nobody."""
    shown = tables.infinity(result_of())
    assert "2 requests failed" not in shown
    assert "6 requests failed" in shown
    assert "41 times" in shown
    rows = [line for line in shown.splitlines() if line.startswith(("| 64", "| 1 "))]
    assert rows[0].startswith(
        "| 64 clients, 128 tokens | 90.0 | 100.0 | 100.0 | 30.0 | 100.0 | 100.0 | requests/s 3.00 |"
    )
    assert rows[2].endswith("| p50 1.00 | <= 0.333 |")
    assert len({line.count("|") for line in shown.splitlines()[2:]}) == 1


def test_a_benchmark_without_a_result_has_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a table whose result is gone is stale."""
    frame = f"{render.BEGIN}\n{render.END}"
    monkeypatch.setattr(render, "RESULTS", tmp_path)
    without = render.rendered(frame)
    assert "Infinity" not in without
    (tmp_path / "infinity-cpu.json").write_text(json.dumps(result_of()))
    assert tables.infinity(result_of()) in render.rendered(frame)
    (tmp_path / "infinity-cpu.json").unlink()
    assert render.rendered(frame) == without


def test_versions_are_those_of_the_peers_own_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However a package writes its name; what is not there is left out."""
    monkeypatch.setattr("benchmarks.peers.venv.FOLDER", tmp_path)
    told = tmp_path / "peer" / "lib" / "python3.11" / "site-packages" / "a_package-1.5.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text("Name: A_package\nVersion: 1.5\n")
    assert Venv(name="peer").versions(["a-package", "torch"]) == {"a-package": "1.5"}

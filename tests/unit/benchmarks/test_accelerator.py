"""The accelerator's run, of which nothing may be lost."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import parser
from benchmarks.accelerator import run
from benchmarks.accelerator.report import Report


def test_a_part_that_fails_or_has_no_time_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either is told; what fails makes the exit status 1, what is left out does not."""

    def parts(given: object, report: Report) -> list[Any]:
        return [("first", lambda: 1 / 0), ("second", lambda: report.add_row("rows", {"workload": "short"}))]

    monkeypatch.setattr(run, "parts", parts)
    for limit, status, told, rows in (
        (1000.0, 1, {"error": "ZeroDivisionError: division by zero"}, [{"part": "second", "workload": "short"}]),
        (run.LEAST - 1, 0, {"skipped": "the time is up"}, None),
    ):
        asked = ["accelerator", "--device", "cpu", "--limit", str(limit), "--out", str(tmp_path / "found.json")]
        assert run.main(parser().parse_args(asked)) == status
        found = json.loads((tmp_path / "found.json").read_text())
        assert found["parts"][0].items() >= told.items()
        assert found.get("rows") == rows


def test_a_row_is_on_disk_at_once_with_its_floor(tmp_path: Path) -> None:
    """And profiles of an earlier run are gone, while those of this one add up."""
    (tmp_path / "found-old.txt").write_text("old")
    report = Report({"settings": {"scale": "full"}}, tmp_path / "found.json")
    report.limits |= {"name": "a chip", "flops": 1e12, "memory": 1e12, "link": 1e12}
    report.add_row("rows", {"workload": "short", "in flight": 64, "tokens/s": 2_923})
    (row,) = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert (row["floor tokens/s"], row["bound by"], row["% of floor"]) == (5846, "products", 50.0)
    for kind in ("eager", "other"):
        report.profile("short", f"{kind}\n")
    assert [each.name for each in tmp_path.glob("*.txt")] == ["found-short.txt"]
    assert (tmp_path / "found-short.txt").read_text() == "eager\nother\n"


def test_a_part_replaces_what_an_earlier_run_found_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves all else as it was; a result of another device is left alone."""
    limits = {"name": "a processor", "flops": 1e12, "memory": 1e12, "link": 1e12}
    names = ["attention, heads of 64", "engine, minilm"]
    others = ["engine, another", "services, short"]
    found = {
        "limits": limits,
        "parts": [{"part": part, "commit": "earlier"} for part in names],
        "attention": [{"part": names[0], "us": 1}],
        "rows": [{"part": names[1], "workload": "short"}, {"part": others[0], "workload": "medium"}],
        "services": [{"part": others[1], "workload": "short"}],
    }
    path = tmp_path / "found.json"
    asked = ["accelerator", "--device", "cpu", "--add", "--scale", "small", "--commit", "later", "--out", str(path)]
    monkeypatch.setattr(run, "parts", lambda *_: [(name, lambda: None) for name in [*names, *others]])
    path.write_text(json.dumps(found))
    assert run.main(parser().parse_args([*asked, "--only", *names])) == 0
    left = json.loads(path.read_text())
    assert (left["attention"], left["rows"], left["services"]) == ([], found["rows"][1:], found["services"])
    assert [(row["part"], row["commit"]) for row in left["parts"]] == [(name, "later") for name in names]
    path.write_text(json.dumps(found))
    monkeypatch.setattr(run, "parts", lambda *_: [("engine, minilm", lambda: 1 / 0), ("services, short", lambda: None)])
    assert run.main(parser().parse_args([*asked, "--limit", "30"])) == 1
    left = json.loads(path.read_text())
    assert sorted(left["rows"], key=str) == sorted(found["rows"], key=str), "what failed leaves the earlier rows"
    assert {row["part"]: row["commit"] for row in left["parts"]}["engine, minilm"] == "earlier"
    assert run.main(parser().parse_args([*asked, "--only", "no such part"])) == 2
    path.write_text(json.dumps(found | {"limits": limits | {"name": "a chip"}}))
    assert run.main(parser().parse_args(asked)) == 2
    assert json.loads(path.read_text())["services"] == found["services"]

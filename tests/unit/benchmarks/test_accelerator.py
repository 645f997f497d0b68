"""The accelerator's run, of which nothing may be lost."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import parser
from benchmarks.accelerator import run
from benchmarks.accelerator.report import Report


def test_a_row_is_on_disk_at_once_with_its_floor(tmp_path: Path) -> None:
    report = Report({"settings": {"scale": "full"}}, tmp_path / "found.json")
    report.limits |= {"name": "a chip", "flops": 1e12, "memory": 1e12, "link": 1e12}
    report.add_row("rows", {"workload": "short", "in flight": 64, "tokens/s": 2_923})
    (row,) = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert (row["floor tokens/s"], row["bound by"], row["% of floor"]) == (5846, "products", 50.0)


def test_a_part_replaces_what_an_earlier_run_measured_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All else stays as it was: what a part that failed had before, and a result of another device."""
    limits = {"name": "a processor", "flops": 1e12, "memory": 1e12, "link": 1e12}
    names, others = ["maxsim, torch.float32", "engine, minilm"], ["engine, another", "services, short"]
    before = {
        "limits": limits,
        "parts": [{"part": part, "commit": "earlier"} for part in names],
        "maxsim": [{"part": names[0], "us": 1}],
        "rows": [{"part": names[1], "workload": "short"}, {"part": others[0], "workload": "medium"}],
        "services": [{"part": others[1], "workload": "short"}],
    }
    path = tmp_path / "found.json"
    asked = ["accelerator", "--device", "cpu", "--add", "--scale", "small", "--commit", "later", "--out", str(path)]
    monkeypatch.setattr(run, "parts", lambda *_: [(name, lambda: None) for name in [*names, *others]])
    path.write_text(json.dumps(before))
    assert run.main(parser().parse_args([*asked, "--only", *names])) == 0
    left = json.loads(path.read_text())
    assert (left["maxsim"], left["rows"], left["services"]) == ([], before["rows"][1:], before["services"])
    assert [(row["part"], row["commit"]) for row in left["parts"]] == [(name, "later") for name in names]
    path.write_text(json.dumps(before))
    monkeypatch.setattr(run, "parts", lambda *_: [("engine, minilm", lambda: 1 / 0), ("services, short", lambda: None)])
    assert run.main(parser().parse_args([*asked, "--limit", "30"])) == 1
    left = json.loads(path.read_text())
    assert sorted(left["rows"], key=str) == sorted(before["rows"], key=str)
    assert {row["part"]: row["commit"] for row in left["parts"]}["engine, minilm"] == "earlier"
    assert run.main(parser().parse_args([*asked, "--only", "no such part"])) == 2
    path.write_text(json.dumps(before | {"limits": limits | {"name": "a chip"}}))
    assert run.main(parser().parse_args(asked)) == 2
    assert json.loads(path.read_text())["services"] == before["services"]

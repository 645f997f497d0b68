"""The accelerator's run, of which nothing may be lost; and what a profiler's events say of a step."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import parser
from benchmarks.accelerator import run
from benchmarks.accelerator.trace import STEP, figures


def test_a_part_replaces_what_an_earlier_run_found_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves all else as it was; a result of another device is left alone."""
    limits = {"name": "a processor", "flops": 1e12, "memory": 1e12, "link": 1e12}
    found = {
        "limits": limits,
        "machine": {"commit": "earlier"},
        "parts": [{"part": "attention, heads of 64"}, {"part": "engine, minilm"}],
        "attention": [{"head": 64, "us": 1}, {"head": 128, "us": 2}],
        "maxsim": [{"shape": "1 x 2, bfloat16"}, {"shape": "1 x 2, float16"}],
        "rows": [{"workload": "short", "model": "minilm"}, {"workload": "medium", "model": "another"}],
        "steps": [{"workload": "short"}, {"workload": "token-embed"}],
        "services": [{"workload": "short"}, {"workload": "token-embed"}],
    }
    path = tmp_path / "found.json"
    asked = ["accelerator", "--device", "cpu", "--add", "--scale", "small", "--commit", "later", "--out", str(path)]
    names = ["attention, heads of 64", "maxsim, torch.float16", "engine, minilm", "services, token-embed"]
    monkeypatch.setattr(run, "parts", lambda *_: [(name, lambda: None) for name in [*names, "attention, heads of 128"]])
    path.write_text(json.dumps(found))
    assert run.main(parser().parse_args([*asked, "--only", *names])) == 0
    left = json.loads(path.read_text())
    assert left["attention"] == [{"head": 128, "us": 2}]
    assert left["maxsim"] == [{"shape": "1 x 2, bfloat16"}]
    assert left["rows"] == [{"workload": "medium", "model": "another"}]
    assert left["steps"] == [{"workload": "token-embed"}]
    assert left["services"] == [{"workload": "short"}]
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


def event(category: str, name: str, start: float, microseconds: float) -> dict[str, Any]:
    return {"cat": category, "name": name, "ts": start, "dur": microseconds}


def test_figures_of_a_step_from_a_trace() -> None:
    """Two steps of three kernels, of which two overlap; a graph is one launch; 40 us between them, 10 within."""
    ran = [("gpu_memcpy", 0, 10), ("kernel", 10, 30), ("kernel", 30, 20), ("kernel", 60, 40)]
    events = [
        event(kind, "gemm", start, took) for kind, start, took in (*ran, ("kernel", 140, 30), ("kernel", 170, 30))
    ]
    events += [event("gpu_user_annotation", STEP, 0, 100), event("gpu_user_annotation", STEP, 140, 60)]
    events += [event("gpu_user_annotation", "another", 0, 900), event("cpu_op", "aten::mm", 0, 900)]
    calls = ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaGraphLaunch", "cuLaunchKernelEx", "cudaEventRecord")
    events += [event("cuda_runtime", name, 0, 5) for name in calls]
    assert figures([*reversed(events), {"ph": "M"}], "cuda") == {
        "kernels": 3,
        "launches": 2,
        "ms": 0.08,
        "idle before the next ms": 0.04,
        "device idle %": 25.0,
    }

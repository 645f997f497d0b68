"""Every part of the accelerator's benchmark, on a processor and at a size to try it out; its figures mean nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.accelerator.engine import WORKLOADS
from benchmarks.accelerator.run import LOADS
from benchmarks.machine import ROOT
from benchmarks.workloads import named

SIZE = ("--device", "cpu", "--scale", "tiny", "--seconds", "0.5", "--limit", "500")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_part_runs(tmp_path: Path) -> None:
    """Each workload with its floor; both services with p50 and p99."""
    out = tmp_path / "accelerator.json"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"}
    command = [sys.executable, "-m", "benchmarks", "accelerator", *SIZE, "--out", str(out)]
    subprocess.run(command, check=True, cwd=ROOT, env=environment)
    found = json.loads(out.read_text())
    assert [each for each in found["parts"] if set(each) != {"part", "commit", "seconds"}] == []
    measured = {(row["workload"], row["in flight"]) for row in found["rows"]}
    assert measured == {(name, count) for name in WORKLOADS for count in named("tiny")[name].in_flight}
    assert all(row["bound by"] and row["p99 ms"] >= row["p50 ms"] for row in (*found["rows"], *found["services"]))
    assert [row["workload"] for row in found["services"]] == [*LOADS]

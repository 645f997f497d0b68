"""The accelerator's run on a processor: parts, limits, patterns, and what failures come to. No figure counts here."""

import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import device_limits
from benchmarks.accelerator import __main__ as accelerator
from benchmarks.accelerator import contexts, engine, flops, goals, patterns, workloads
from benchmarks.accelerator import part as part_module
from benchmarks.accelerator.in_flight import InFlight
from benchmarks.accelerator.part import Part
from benchmarks.accelerator.plan import SERVICES, parts_of
from benchmarks.accelerator.report import Report
from gpu_worker.device.placement import Placement
from gpu_worker.model.loading import load
from gpu_worker.step.flight import Part as StepPart
from gpu_worker.step.flight import Progress
from shared.jobs import Encode, Job, JobResult
from shared.ragged import RaggedTokens
from shared.vectors import OutputKind

ROOT = Path(__file__).parents[2]
MISSING = ("grpc_health", "grpc_reflection", "grpc_status", "pydantic_settings", "structlog", "pytest_asyncio", "hdrh")
"""What a machine with an accelerator does not have; rich and aiohttp may lack too."""
BARE = "import sys\nsys.modules.update(dict.fromkeys({}))\n".format([*MISSING, "rich", "aiohttp", "scipy"])
DENSE = Encode(outputs=frozenset({OutputKind.DENSE}), normalize=True, normalize_tokens=True)


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a Python, and of all that it starts, that has PyTorch and little else."""
    (tmp_path / "sitecustomize.py").write_text(BARE)
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "protos")))}


def ran(environment: dict[str, str], out: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit status, JSON and what was printed."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.accelerator",
        "--scale",
        "small",
        "--seconds",
        "0.1",
        "--out",
        str(out),
    ]
    done = subprocess.run([*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode, json.loads(out.read_text()), done.stdout + done.stderr


@pytest.mark.slow
def test_a_run_without_the_packages_of_the_services(bare: dict[str, str], tmp_path: Path) -> None:
    """The engine is measured, the services are skipped by name, and so is what needs CUDA."""
    chosen = ("--only", "limits", "tiny-bert", "tests", "services")
    status, result, told = ran(bare, tmp_path / "out" / "accelerator.json", "--device", "cpu", *chosen)
    assert status == 0, told
    assert result["limits"]["flops_per_second"] > 0
    assert (result["seed"], result["scale"], result["limits"]["device"]) == (1, "small", "cpu")
    assert {"commit", "versions"} <= set(result["machine"])
    assert [each["part"] for each in result["parts"]] == ["tests", "limits", "tiny-bert", "services"]
    assert result["parts"][0]["skipped"] == "it needs CUDA"
    *measured, services = result["rows"]
    assert [(row["workload"], row["in_flight"]) for row in measured] == [("short", 64), ("clients", 1), ("clients", 4)]
    for row in measured:
        assert row["requests"] > 0
        assert row["latency_ms"]["p50"] <= row["latency_ms"]["p99"]
        assert row["limit_tokens_per_second"] == round(result["limits"]["flops_per_second"] / row["flops_per_token"])
        assert "goal" not in row  # goals are for the published shapes
    assert services["workload"] == SERVICES
    assert "ModuleNotFoundError" in services["skipped"]
    assert "skipped: ModuleNotFoundError" in told


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="here the device is there")
def test_a_device_that_is_not_there_fails_every_workload(bare: dict[str, str], tmp_path: Path) -> None:
    """Each is named with the reason, and the status tells."""
    out = tmp_path / "accelerator.json"
    status, result, told = ran(bare, out, "--device", "cuda:0", "--only", "tiny-bert", "tiny-qwen3")
    assert status == 1
    assert [row["workload"] for row in result["rows"]] == ["token-embed", "short", "clients"]
    assert all("cannot be used" in row["error"] for row in result["rows"])
    assert told.count("ERROR ModelRefused") == 3


def test_a_failing_workload_keeps_nothing_else_from_running(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rows before and after it are there; the status is 1."""

    def closed(*arguments: Any) -> dict[str, Any]:
        if arguments[2] == 4:
            raise RuntimeError("no room\nfor this")
        return {"in_flight": arguments[2]}

    monkeypatch.setattr(patterns, "closed", closed)
    out = tmp_path / "rows.json"
    given = Namespace(workloads=["clients", "short"], device="cpu", scale="small", seed=1, seconds=0.1, out=out)
    assert engine.main(given) == 1
    told = [(row["workload"], row.get("error", row.get("in_flight"))) for row in json.loads(out.read_text())]
    assert told == [("clients", 1), ("clients", "RuntimeError: no room"), ("short", 64)]


def part(name: str, program: str, seconds: float = 60, **further: Any) -> Part:
    return Part(name=name, arguments=("-c", program), seconds=seconds, **further)


def report() -> Report:
    return Report(head={}, judged=True)


def test_what_the_budget_has_no_room_for_is_told(tmp_path: Path) -> None:
    """And what is stopped, and what dies without a word: each workload that they owed has its row."""
    found, out = report(), tmp_path / "result.json"
    parts = [
        part("hangs", "import time; time.sleep(60)", 0.2, workloads=("one",)),
        part("dies", "import os; os.abort()", workloads=("two",)),
        part("device", "", needs_cuda=True),
    ]
    accelerator.run(parts, found, "cpu", 60, out)
    assert [row["error"] for row in found.rows] == ["it was stopped after 0 s", "it ended with status -6"]
    accelerator.run([part("late", "", workloads=("three",))], found, "cpu", accelerator.LEAST - 1, out)
    assert found.rows[-1] == {"workload": "three", "skipped": "the budget of 9 s is spent"}
    assert json.loads(out.read_text())["rows"] == found.rows
    assert found.failed
    shown = "\n".join(found.lines())
    assert all(each in shown for each in ("stopped after", "status -6", "it needs CUDA", "budget of 9 s"))


def test_what_will_not_end_is_ended_with_all_that_it_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also what it started in a session of its own, as the harness does."""
    monkeypatch.setattr(part_module, "GRACE", 0.5)
    told = tmp_path / "pid"
    program = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
open({str(told)!r}, "w").write(str(child.pid))
time.sleep(60)
"""
    assert part("stubborn", program, 2).run(60).startswith("it was stopped")
    child = int(told.read_text())
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _runs(child):
        time.sleep(0.05)
    assert not _runs(child)


def _runs(pid: int) -> bool:
    """Not ended, and not waiting for somebody to ask how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_rows_get_their_limit_and_their_goal() -> None:
    """tokens/s against operations a second; latency is to be under, rates over."""
    found = report()
    found.add(part("limits", ""), {"device": "x", "flops_per_second": 1e12, "bytes_per_second": 1e12}, "", 1)
    row = {
        "workload": "colbert-rerank",
        "in_flight": 64,
        "requests_per_second": 300.0,
        "tokens_per_second": 610_000,
        "latency_ms": {"p50": 100.0, "p99": 219.0},
        "flops_per_token": 1e6,
    }
    late = row | {"latency_ms": {"p50": 100.0, "p99": 221.0}}
    found.add(part("jina", "", workloads=("colbert-rerank",)), [row, late], "", 1)
    assert [each["goal_met"] for each in found.rows] == [True, False]
    assert [each["share_of_limit"] for each in found.rows] == [0.61, 0.61]
    assert found.rows[0]["published"]["tokens_per_second"] == 331_638
    assert not found.failed
    assert "MISSED" in found.lines()[-3]


def test_goals_are_of_workloads_that_there_are() -> None:
    """At full scale, with as many jobs in flight."""
    known = {
        (each.name, count)
        for each in workloads.all_of("full", 1).values()
        for count in each.in_flight or [1 if each.pattern == "against encoder" else len(each.lengths)]
    }
    assert set(goals.GOALS) - known == {(SERVICES, 64)}
    assert goals.of({"workload": "clients", "in_flight": 2}) == goals.Goal()


def test_every_workload_is_in_a_part(tmp_path: Path) -> None:
    """Once, beside those of its model."""
    given = Namespace(device="cuda:0", scale="full", seed=1, seconds=1.0, out=tmp_path / "x.json")
    parts = parts_of(given, tmp_path)
    assert sorted(name for each in parts for name in each.workloads) == sorted([*workloads.all_of("full", 1), SERVICES])
    assert parts[0].name == "tests"
    assert len({each.name for each in parts}) == len(parts)


class Counting:
    """An engine that computes nothing; `most` is how many jobs it ever held open."""

    def __init__(self) -> None:
        self.opened, self.most, self.answered = 0, 0, 0

    def open(self, job: Job) -> Progress:
        self.opened += 1
        self.most = max(self.most, self.opened - self.answered)
        return Waiting(self, job.tokens.lengths)

    def step(self, parts: Sequence[StepPart]) -> None:
        assert parts


class Waiting:
    def __init__(self, owner: Counting, costs: Sequence[int]) -> None:
        self.owner, self.costs = owner, costs

    def result(self) -> JobResult:
        self.owner.answered += 1
        return JobResult()


def jobs(*lengths: int) -> Iterator[Job]:
    tokens = RaggedTokens(ids=bytes(4 * sum(lengths)), lengths=lengths)
    return repeat(Job(id=0, work=DENSE, tokens=tokens))


def test_a_closed_loop_keeps_so_many_jobs_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never more; the tokens of a step count when it is run, not when a job ends."""
    counting = Counting()
    monkeypatch.setattr(counting, "model", Namespace(placement=Namespace(step_tokens=64)), raising=False)
    row = patterns.closed(counting, jobs(10, 20, 30), 5, 0.02)  # type: ignore[arg-type]
    assert counting.most == row["in_flight"] == 5
    assert 0 < row["requests"] <= counting.answered
    flight = InFlight(counting, 20)
    flight.open(next(jobs(10, 20, 30)))
    assert flight.step() == []
    assert flight.served == 10
    assert [len(flight.step()) for _ in range(2)] == [0, 1]
    assert flight.served == 60


def test_operations_of_a_token() -> None:
    """Products with weights, and 4 x length x width x layers for attention; half of that looking back only."""
    lengths, layers, width = (100, 50), 3, 64
    squares = 4 * (100**2 + 50**2) / 150 * layers * width
    for name, share in (("tiny-bert", 1), ("tiny-qwen3", 0.5), ("tiny-qwen3-bidirectional", 1)):
        model = load(f"random:{name}", Placement.choose("cpu", "float32"))
        found = flops.per_token(model, [next(jobs(*lengths))])
        assert found == pytest.approx(model.flops_per_token + share * squares)


def test_who_has_the_devices_libraries() -> None:
    """This process has PyTorch's, another does not; one holder more is the worker's, two are a complaint."""
    assert "libtorch" in contexts.mapped(os.getpid())
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert contexts.mapped(other.pid) == []
        good = contexts.verdict([7], [7, os.getpid()], os.getpid(), [other.pid])
        assert good["one_context"]
        assert good["told_as_the_workers"]
        assert contexts.complaint(good) == ""
        assert contexts.complaint(contexts.verdict([], [1, 2], os.getpid(), [other.pid]))
        assert contexts.complaint(contexts.verdict([], None, os.getpid(), [os.getpid()]))
        assert contexts.verdict([], [], os.getpid(), [other.pid])["one_context"] is None
    finally:
        other.communicate()


def test_limits_are_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the sides cubed by the time of one product; bytes read and written."""
    monkeypatch.setattr(device_limits, "microseconds", lambda work, *_: (work(), 2.0)[1])
    monkeypatch.setitem(device_limits.SIDES, "cpu", 10)
    monkeypatch.setitem(device_limits.COPIED, "cpu", 1000)
    device = torch.device("cpu")
    assert device_limits.product_flops(device) == pytest.approx(2 * 10**3 / 2e-6)
    assert device_limits.bandwidth(device) == pytest.approx(2 * 1000 / 2e-6)

"""What the metrics of both processes tell, without the processes."""

import re
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from frontend_service.metrics import FrontendMetrics
from gpu_worker.metrics import REASONS as WORKER_REASONS
from gpu_worker.metrics import WorkerMetrics
from gpu_worker.schedule.interface import WorkerFigures
from shared.errors import Overloaded
from shared.jobs import Classify, Encode, Job, JobResult, MaxSim, Priority, RaggedTokens
from shared.metrics import Page
from shared.server.admission import Admission, Bounds
from shared.vectors import DataType, Layout, MultiVectors, OutputKind

ROOT = Path(__file__).parents[2]
EMBED = "/selvage.v1.EmbeddingService/Embed"


def value(page: Page, name: str, **labels: str) -> float | None:
    """Of one series; None where it does not exist."""
    return page.registry.get_sample_value(name, labels)


def test_rpcs_are_told_by_convention() -> None:
    page = Page()
    for code, seconds in (("RESOURCE_EXHAUSTED", 0.2), ("OK", 0.1), ("CANCELLED", 0.1)):
        page.rpcs.started(EMBED, "unary")
        page.rpcs.ended(EMBED, "unary", code, seconds)
    labels = {"grpc_type": "unary", "grpc_service": "selvage.v1.EmbeddingService", "grpc_method": "Embed"}
    assert value(page, "grpc_server_started_total", **labels) == 3
    assert value(page, "grpc_server_handling_seconds_sum", **labels) == pytest.approx(0.4)
    for code in ("OK", "ResourceExhausted", "Canceled"):
        assert value(page, "grpc_server_handled_total", **labels, grpc_code=code) == 1


def test_jobs_and_steps_are_told() -> None:
    """Jobs by kind and outcome, with times and tokens of those that were answered; of another page nothing."""
    page, other, tokens = Page(), Page(), RaggedTokens.of([[1, 2], [3]])
    worker, _ = WorkerMetrics(page.registry), WorkerMetrics(other.registry)
    rows = MultiVectors(dimensions=1, data=b"1234", data_type=DataType.FLOAT32, lengths=(1,))
    encode = Encode(outputs=frozenset({OutputKind.DENSE}), normalize=True, normalize_tokens=True)
    max_sim = MaxSim(queries=rows, documents=rows, layout=Layout.MATRIX, unit_rows=True, mean=False)
    result = JobResult(queue=0.5, compute=0.25)
    worker.job(Job(id=1, work=encode, tokens=tokens, priority=Priority.BULK), result)
    worker.job(Job(id=2, work=max_sim), result)
    worker.job(Job(id=3, work=Classify(), tokens=tokens), Overloaded("full"))
    for kind, outcome in (("encode", "OK"), ("max_sim", "OK"), ("classify", "OVERLOADED")):
        assert value(page, "selvage_jobs_total", kind=kind, outcome=outcome) == 1
    assert value(page, "selvage_queue_seconds_sum", priority="bulk") == 0.5
    assert value(page, "selvage_queue_seconds_count", priority="interactive") == 0
    assert value(page, "selvage_compute_seconds_sum") == 0.5
    assert value(page, "selvage_job_tokens_sum") == 3
    worker.step(0.5, 300, 4)
    worker.step(0.25, 100, 1)
    assert value(page, "selvage_step_seconds_sum") == 0.75
    assert value(page, "selvage_step_tokens_sum") == value(page, "selvage_tokens_total") == 400
    assert value(page, "selvage_step_units_count") == 2
    assert value(other, "selvage_tokens_total") == 0


def test_a_worker_is_read_when_prometheus_asks() -> None:
    """Nothing is pushed; memory is told where there is any."""
    page, asked = Page(), []

    def figures() -> WorkerFigures:
        asked.append(True)
        return WorkerFigures(
            queued_tokens=7,
            queued_jobs=2,
            refused={"deadline": 3},
            cancelled_waiting=4,
            stalled=True,
            unsent=5,
            frontends=1,
            memory={"used": 10, "limit": 20},
            budget=4096,
            pieces=6,
            kept_bytes=30,
            cache_bytes=500,
            waiting_for_cache=3,
        )

    WorkerMetrics(page.registry).read(figures)
    asked.clear()
    assert value(page, "selvage_queued_tokens") == 7
    assert len(asked) == 1
    plain = {"queued_jobs": 2, "step_budget_tokens": 4096, "pieces_total": 6, "jobs_waiting_for_cache": 3}
    plain |= {"cancelled_waiting_total": 4, "stalled": 1, "unsent_bytes": 5, "attached_frontends": 1}
    assert {name: value(page, f"selvage_{name}") for name in plain} == plain
    assert value(page, "selvage_cache_bytes", state="kept") == 30
    assert value(page, "selvage_cache_bytes", state="limit") == 500
    assert value(page, "selvage_refused_total", reason="deadline") == 3
    assert value(page, "selvage_refused_total", reason="queued_tokens") == 0
    assert value(page, "selvage_device_memory_bytes", state="limit") == 20


def test_a_frontend_is_read_likewise() -> None:
    """With the workers that it sees."""
    page, admission = Page(), Admission(Bounds(size=300))
    fleet: Any = SimpleNamespace(
        refused={"deadline": 4}, workers={"m": 2}, aside={"m": 1}, waits={"m": 0.5}, fingerprints={"m": "12ab"}
    )
    FrontendMetrics(page.registry).read(admission, fleet)
    with admission.request(), admission.hold(300):
        with pytest.raises(Overloaded), admission.request(), admission.hold(5):
            pass
        assert value(page, "selvage_requests_in_flight") == 1
        assert value(page, "selvage_bytes_in_flight") == 300
        for reason, count in (("bytes", 1), ("deadline", 4), ("quota", 0)):
            assert value(page, "selvage_refused_total", reason=reason) == count
        for name, count in (("workers_serving", 2), ("workers_set_aside", 1), ("worker_wait_seconds", 0.5)):
            assert value(page, f"selvage_{name}", model="m") == count
        assert value(page, "selvage_served_model_info", model="m", fingerprint="12ab") == 1


def test_the_reasons_are_those_of_the_code() -> None:
    """So that each stands at 0 before it comes up."""
    queue, estimate = (ROOT / "gpu_worker/schedule/load.py").read_text(), (ROOT / "shared/load.py").read_text()
    reasons = re.findall(r'"(\w+)", (?:Overloaded|self\.late)\(', queue + estimate)
    assert set(WORKER_REASONS) == set(reasons)


def test_the_page_is_served() -> None:
    """On a free port that it tells, with the process's own figures."""
    page = Page()
    address = page.start("127.0.0.1:0")
    try:
        with urllib.request.urlopen(f"http://{address}/metrics") as answer:
            text = answer.read().decode()
    finally:
        page.stop()
    assert "process_resident_memory_bytes" in text
    assert "_created" not in text

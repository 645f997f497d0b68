"""What the metrics of both processes tell, without the processes."""

import re
import urllib.request
from pathlib import Path

import pytest

from shared.errors import Overloaded
from shared.jobs import Classify, Encode, Job, JobResult, MaxSim, Priority, RaggedTokens
from shared.server.admission import OTHERS, REASONS
from shared.telemetry.metrics import FRONTEND_REASONS, WORKER_REASONS, Page
from shared.vectors import DataType, Layout, MultiVectors, OutputKind

ROOT = Path(__file__).parents[2]
EMBED = "/selvage.v1.EmbeddingService/Embed"


def value(page: Page, name: str, **labels: str) -> float | None:
    """Of one series; None where it does not exist."""
    return page.registry.get_sample_value(name, labels)


def test_rpcs_are_told_by_convention() -> None:
    page = Page()
    page.rpcs.started(EMBED, "unary")
    page.rpcs.started(EMBED, "unary")
    page.rpcs.ended(EMBED, "unary", "RESOURCE_EXHAUSTED", 0.2)
    page.rpcs.ended(EMBED, "unary", "OK", 0.1)
    page.rpcs.ended(EMBED, "unary", "CANCELLED", 0.1)
    labels = {"grpc_type": "unary", "grpc_service": "selvage.v1.EmbeddingService", "grpc_method": "Embed"}
    assert value(page, "grpc_server_started_total", **labels) == 2
    assert value(page, "grpc_server_handling_seconds_sum", **labels) == pytest.approx(0.4)
    for code in ("OK", "ResourceExhausted", "Canceled"):
        assert value(page, "grpc_server_handled_total", **labels, grpc_code=code) == 1


def test_jobs_are_told_by_kind_and_outcome() -> None:
    """Times and tokens of those that were answered with a result."""
    page, tokens = Page(), RaggedTokens.of([[1, 2], [3]])
    worker = page.worker()
    rows = MultiVectors(dimensions=1, data=b"1234", data_type=DataType.FLOAT32, lengths=(1,))
    encode = Encode(outputs=frozenset({OutputKind.DENSE}), normalize=True, normalize_tokens=True)
    result = JobResult(queue=0.5, compute=0.25)
    worker.job(Job(id=1, work=encode, tokens=tokens, priority=Priority.BULK), result)
    worker.job(
        Job(id=2, work=MaxSim(queries=rows, documents=rows, layout=Layout.MATRIX, unit_rows=True, mean=False)), result
    )
    worker.job(Job(id=3, work=Classify(), tokens=tokens), Overloaded("full"))
    assert value(page, "selvage_jobs_total", kind="encode", outcome="OK") == 1
    assert value(page, "selvage_jobs_total", kind="max_sim", outcome="OK") == 1
    assert value(page, "selvage_jobs_total", kind="classify", outcome="OVERLOADED") == 1
    assert value(page, "selvage_queue_seconds_sum", priority="bulk") == 0.5
    assert value(page, "selvage_queue_seconds_count", priority="interactive") == 0
    assert value(page, "selvage_compute_seconds_sum") == 0.5
    assert value(page, "selvage_job_tokens_sum") == 3


def test_the_reasons_are_those_of_the_code() -> None:
    """So that each stands at 0 before it comes up."""
    assert set(FRONTEND_REASONS) == {*REASONS, *OTHERS, "deadline", "queue_seconds"}
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

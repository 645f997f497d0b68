"""What Prometheus reads of both processes after some calls, and how a trace goes through both logs."""

from collections.abc import AsyncIterator

import grpc
import pytest

from harness.member import ServiceProcess
from harness.stack import Stack, stack
from selvage.v1 import embedding_pb2, ranking_pb2
from support.random_models import random_model
from support.references import Calls, eventually
from support.scraping import scrape

FLAGS = {"metrics": "127.0.0.1:0", "log-level": "debug"}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
EMBED = {"grpc_type": "unary", "grpc_service": "selvage.v1.EmbeddingService", "grpc_method": "Embed"}


@pytest.fixture(scope="module")
async def pair() -> AsyncIterator[Stack]:
    """A tiny model with both pages."""
    async with stack(random_model("tiny-bert"), worker=FLAGS, frontend=FLAGS | {"max-text-bytes": 64}) as running:
        yield running


async def test_a_scrape_tells_what_was_done(pair: Stack) -> None:
    """Three calls that are answered and one that is refused, in both processes."""
    calls = Calls(pair.channel)
    tokens = 0
    for count in (1, 2):
        reply = await calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=["a b c", "d"][:count]))
        tokens += sum(reply.usage.token_counts)
    await calls.ranking.Rerank(ranking_pb2.RerankRequest(query="a", documents=["b", "c"]))
    with pytest.raises(grpc.aio.AioRpcError):
        await calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=["a" * 65]))

    async def counted() -> bool:
        """A call is counted behind its answer."""
        figures = await scrape(pair.frontends[0])
        in_flight = [figures(f"selvage_{what}_in_flight") for what in ("requests", "bytes")]
        return figures.total("grpc_server_handled_total", **EMBED) == 3 and in_flight == [0, 0]

    await eventually(counted)
    frontend = await scrape(pair.frontends[0])
    assert frontend("grpc_server_started_total", **EMBED) == 3
    assert frontend("grpc_server_handled_total", **EMBED, grpc_code="OK") == 2
    assert frontend("grpc_server_handled_total", **EMBED, grpc_code="InvalidArgument") == 1
    assert frontend("grpc_server_handling_seconds_count", **EMBED) == 3
    assert frontend("selvage_tokenize_seconds_count") == frontend("selvage_transfer_seconds_count") == 3
    assert frontend("selvage_requests_in_flight") == frontend("selvage_bytes_in_flight") == 0
    assert frontend("selvage_refused_total", reason="requests") == 0
    assert frontend("selvage_workers_serving", model="tiny-bert") == 1
    assert frontend("selvage_worker_wait_seconds", model="tiny-bert") == 0

    worker = await scrape(pair.worker)
    assert worker("selvage_jobs_total", kind="encode", outcome="OK") == 2
    assert worker("selvage_jobs_total", kind="score", outcome="OK") == 1
    assert worker("selvage_queue_seconds_count", priority="default") == 3
    assert worker("selvage_job_tokens_sum") == worker("selvage_step_tokens_sum") == worker("selvage_tokens_total")
    assert (worker("selvage_tokens_total") or 0) > tokens
    assert worker("selvage_step_units_sum") == 6
    assert worker("selvage_queued_tokens") == worker("selvage_queued_jobs") == worker("selvage_unsent_bytes") == 0
    assert worker("selvage_attached_frontends") == 1
    assert worker("selvage_stalled") == worker("selvage_cancelled_waiting_total") == 0
    attach = {"grpc_type": "bidi_stream", "grpc_service": "selvage.worker.v1.WorkerService", "grpc_method": "Attach"}
    assert worker("grpc_server_started_total", **attach) == 1


async def test_a_trace_stands_in_both_logs(pair: Stack) -> None:
    """Of the call in the frontend, of its job in the worker; a bad header is ignored."""
    calls = Calls(pair.channel)
    request = embedding_pb2.EmbedRequest(texts=["a b c"])
    for name, header in (("traced", TRACEPARENT), ("untraced", "bad")):
        await calls.embedding.Embed(request, metadata=[("x-request-id", name), ("traceparent", header)])

    def traces(member: ServiceProcess, event: str) -> dict[str, str | None]:
        lines = [line for line in member.events if line["event"] == event]
        return {line["request_id"]: line.get("trace_id") for line in lines if line["request_id"].endswith("traced")}

    for member, event in ((pair.frontends[0], "call"), (pair.worker, "job")):
        await eventually(lambda member=member, event=event: len(traces(member, event)) == 2)  # type: ignore[misc]
        assert traces(member, event) == {"traced": TRACE, "untraced": None}

"""Figures, logs and spans of both processes after some calls: what Prometheus, a reader and a collector get."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from harness.member import ServiceProcess
from harness.stack import Stack, stack
from selvage.v1 import embedding_pb2, ranking_pb2
from support.random_models import random_model
from support.references import Calls, eventually
from support.scraping import scrape

FLAGS = {"metrics": "127.0.0.1:0", "log-level": "debug"}
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
LOGGED = "0af7651916cd43dd8448eb211c80319c"
EMBED = {"grpc_type": "unary", "grpc_service": "selvage.v1.EmbeddingService", "grpc_method": "Embed"}


class Collector(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Keeps the spans that it gets, by service and name."""

    def __init__(self) -> None:
        self.spans: dict[tuple[str, str], Any] = {}

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            self._export,
            request_deserializer=trace_service_pb2.ExportTraceServiceRequest.FromString,
            response_serializer=trace_service_pb2.ExportTraceServiceResponse.SerializeToString,
        )

    async def _export(self, request: Any, _: Any) -> Any:
        for resource in request.resource_spans:
            [name] = [each.value.string_value for each in resource.resource.attributes if each.key == "service.name"]
            for scope in resource.scope_spans:
                self.spans |= {(name, span.name): span for span in scope.spans if span.trace_id.hex() == TRACE}
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture(scope="module")
async def collector() -> AsyncIterator[Collector]:
    """Both processes are told its address."""
    made, server = Collector(), grpc.aio.server()
    server.add_generic_rpc_handlers((made,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        yield made
    await server.stop(0)


@pytest.fixture(scope="module")
async def pair(collector: Collector) -> AsyncIterator[Stack]:
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
    attach = {"grpc_type": "bidi_stream", "grpc_service": "selvage.worker.v1.WorkerService", "grpc_method": "Attach"}
    assert worker("grpc_server_started_total", **attach) == 1


async def test_a_call_stands_in_both_logs_and_no_text_does(pair: Stack) -> None:
    """With its request id and its trace; a bad header is ignored."""
    calls = Calls(pair.channel)
    request = embedding_pb2.EmbedRequest(texts=["zanzibar"])
    for name, header in (("traced", f"00-{LOGGED}-{SPAN}-01"), ("untraced", "bad")):
        call = calls.embedding.Embed(request, metadata=[("x-request-id", name), ("traceparent", header)])
        assert ("x-request-id", name) in tuple(await call.trailing_metadata())

    def traces(member: ServiceProcess, event: str) -> dict[str, str | None]:
        lines = [line for line in member.events if line["event"] == event]
        return {line["request_id"]: line.get("trace_id") for line in lines if line["request_id"].endswith("traced")}

    for member, event in ((pair.frontends[0], "call"), (pair.worker, "job")):
        await eventually(lambda member=member, event=event: len(traces(member, event)) == 2)  # type: ignore[misc]
        told = traces(member, event)
        assert told["traced"] == LOGGED != told["untraced"]  # which begins a trace of its own
        assert "zanzibar" not in "\n".join(member.log)


async def test_one_trace_goes_through_both(pair: Stack, collector: Collector) -> None:
    """The caller's span, the frontend's below it, the worker's below that; what is left is sent at the end."""
    request = embedding_pb2.EmbedRequest(texts=["a b c"])
    await Calls(pair.channel).embedding.Embed(request, metadata=[("traceparent", f"00-{TRACE}-{SPAN}-01")])
    for member in reversed(pair.members):
        assert await member.stop() == 0
    call = collector.spans["selvage-frontend", "selvage.v1.EmbeddingService/Embed"]
    job, compute = (collector.spans["selvage-worker", name] for name in ("job Encode", "compute"))
    assert [each.parent_span_id.hex() for each in (call, job, compute)] == [SPAN, call.span_id.hex(), job.span_id.hex()]
    assert "selvage.compute_seconds" in {each.key for each in call.attributes}

"""Spans of both processes, as a collector gets them."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from harness.stack import stack
from selvage.v1 import embedding_pb2
from support.random_models import random_model
from support.references import Calls

WITHOUT = "the extra trace is not installed"
pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason=WITHOUT)
trace_service_pb2 = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason=WITHOUT)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


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
                self.spans |= {(name, span.name): span for span in scope.spans}
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture
async def collector() -> AsyncIterator[tuple[Collector, str]]:
    """And its URL."""
    made, server = Collector(), grpc.aio.server()
    server.add_generic_rpc_handlers((made,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield made, f"http://127.0.0.1:{port}"
    await server.stop(0)


async def test_one_trace_goes_through_both(collector: tuple[Collector, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's span, the frontend's below it, the worker's below that; what is left is sent at the end."""
    kept, url = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    async with stack(random_model("tiny-bert")) as pair:
        request = embedding_pb2.EmbedRequest(texts=["a b c"])
        await Calls(pair.channel).embedding.Embed(request, metadata=[("traceparent", f"00-{TRACE}-{SPAN}-01")])
    call = kept.spans["selvage-frontend", "selvage.v1.EmbeddingService/Embed"]
    job, compute = (kept.spans["selvage-worker", name] for name in ("job Encode", "compute"))
    assert {each.trace_id.hex() for each in (call, job, compute)} == {TRACE}
    assert [each.parent_span_id.hex() for each in (call, job, compute)] == [SPAN, call.span_id.hex(), job.span_id.hex()]
    assert "selvage.compute_seconds" in {each.key for each in call.attributes}

"""Spans of calls and jobs, caught in memory."""

import sys
from collections.abc import Iterator

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra trace is not installed")
pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="the extra trace is not installed")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from frontend_service.services.pipeline import Timing
from shared import reporting
from shared.caller import TERMS, Caller
from shared.errors import InvalidInput, Overloaded
from shared.jobs import Classify, Job, JobResult, RaggedTokens
from shared.server.calls import Calls
from shared.spans import Spans

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = Caller(
    method="/selvage.v1.EmbeddingService/Embed",
    request_id="mine",
    traceparent=f"00-{TRACE}-{SPAN}-01",
    tracestate="vendor=1",
)


def test_without_the_extra_a_line_says_that_there_are_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable may be meant for others, so the process starts."""
    monkeypatch.setitem(sys.modules, "shared.spans", None)
    monkeypatch.setenv(reporting.COLLECTOR, "http://127.0.0.1:1")
    with capture_logs() as lines:
        assert reporting.spans("test") is None
    assert [line["event"] for line in lines] == ["no spans"]


class House:
    """Spans that stay here."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.spans = Spans("test", SimpleSpanProcessor(self._exporter))
        self.calls = Calls(timeout=60, begin_span=self.spans.begin)

    @property
    def ended(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._exporter.get_finished_spans()}


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.spans.stop()


async def test_a_call_is_a_span_below_its_callers(house: House) -> None:
    """With its times; what it asks of the worker comes below it."""
    told: list[str] = []

    async def work() -> None:
        told.append(TERMS.get().traceparent)
        house.spans.times(Timing(tokenize=1, queue=2, compute=3, transfer=4, postprocess=5))

    await house.calls.answer(CALLER, work)
    span = house.ended["selvage.v1.EmbeddingService/Embed"]
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, SPAN)
    assert span.context.trace_state.get("vendor") == "1"
    assert told == [f"00-{TRACE}-{span.context.span_id:016x}-01"]
    attributes = dict(span.attributes or {})
    assert attributes["selvage.request_id"] == "mine"
    names = ("tokenize", "queue", "compute", "transfer", "postprocess")
    assert [attributes[f"selvage.{name}_seconds"] for name in names] == [1, 2, 3, 4, 5]


async def test_a_failed_call_says_why(house: House) -> None:
    async def work() -> None:
        raise InvalidInput("a text of the user's")

    with pytest.raises(InvalidInput):
        await house.calls.answer(CALLER, work)
    [span] = house.ended.values()
    attributes = dict(span.attributes or {})
    assert (attributes["rpc.response.status_code"], attributes["error.type"]) == ("INVALID_ARGUMENT", "INVALID_INPUT")
    assert not span.status.is_ok
    assert "user" not in span.to_json()


def test_a_job_is_a_span_with_its_queue_and_compute(house: House) -> None:
    job = Job(id=1, work=Classify(), tokens=RaggedTokens.of([[1, 2]]), traceparent=CALLER.traceparent)
    house.spans.job(job, JobResult(queue=0.5, compute=0.25))
    ended = house.ended
    assert set(ended) == {"job Classify", "queue", "compute"}
    whole, queue, compute = ended["job Classify"], ended["queue"], ended["compute"]
    assert {f"{each.context.trace_id:032x}" for each in ended.values()} == {TRACE}
    assert whole.start_time == queue.start_time
    assert queue.end_time == compute.start_time
    assert compute.end_time == whole.end_time
    assert whole.end_time - whole.start_time == 750_000_000  # type: ignore[operator]


def test_a_refused_job_is_a_span_as_well(house: House) -> None:
    """It says why; one of no trace has none."""
    house.spans.job(Job(id=1, work=Classify(), traceparent=CALLER.traceparent), Overloaded("full"))
    house.spans.job(Job(id=2, work=Classify()), JobResult())
    [span] = house.ended.values()
    assert dict(span.attributes or {})["error.type"] == "OVERLOADED"

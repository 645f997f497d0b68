"""Spans of calls and jobs for OpenTelemetry. The only file that knows its library, which the extra `trace` brings.

A frontend makes one a call, with its times as attributes; a worker one a job, with its queue and compute below it. No
attribute holds a text, a key or a header but the request id.
"""

import time
from contextvars import ContextVar
from dataclasses import fields
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shared.caller import Caller
from shared.errors import SelvageError
from shared.jobs import Job, JobResult, Priority

HEADERS = TraceContextTextMapPropagator()
CURRENT: ContextVar[trace.Span] = ContextVar("span", default=trace.INVALID_SPAN)


class OpenTelemetrySpan:
    """See `shared.server.calls.CallSpan`."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        headers: dict[str, str] = {}
        HEADERS.inject(headers, trace.set_span_in_context(span))
        self.traceparent = headers.get("traceparent", "")

    def end(self, code: str, reason: str) -> None:
        """`code`: as gRPC names it; `reason`: of our error table, empty for none."""
        self._span.set_attribute("rpc.response.status_code", code)
        if reason:
            self._span.set_attribute("error.type", reason)
        if code != "OK":
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end()


class Spans:
    """Makes the spans of one process."""

    def __init__(self, service: str, processor: SpanProcessor) -> None:
        """`service`: the process's name in traces. OTEL_TRACES_SAMPLER sets the sampling; by default all."""
        self._provider = TracerProvider(resource=Resource.create({SERVICE_NAME: service}), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("selvage")

    @classmethod
    def to(cls, collector: str, service: str) -> "Spans":
        """`collector`: URL of what takes OTLP over gRPC. Spans leave in batches, from a thread."""
        return cls(service, BatchSpanProcessor(OTLPSpanExporter(endpoint=collector)))

    def begin(self, caller: Caller) -> OpenTelemetrySpan:
        """Begins the span of a call, below the caller's span if it sent one."""
        span = self._tracer.start_span(
            caller.method.lstrip("/"),
            context=HEADERS.extract({"traceparent": caller.traceparent, "tracestate": caller.tracestate}),
            kind=trace.SpanKind.SERVER,
            attributes={
                "selvage.request_id": caller.request_id,
                "selvage.priority": (caller.priority or Priority.DEFAULT).name.lower(),
            },
        )
        CURRENT.set(span)
        return OpenTelemetrySpan(span)

    def times(self, times: Any) -> None:
        """Adds the times of a request, fields of a dataclass in seconds, to the span of the current call."""
        seconds = {f"selvage.{field.name}_seconds": getattr(times, field.name) for field in fields(times)}
        CURRENT.get().set_attributes(seconds)

    def job(self, job: Job, outcome: JobResult | SelvageError) -> None:
        """Records the span of a job that was just answered, unless it belongs to no trace."""
        if not job.traceparent:
            return
        error, end = outcome if isinstance(outcome, SelvageError) else None, time.time_ns()
        queue, compute = (0.0, 0.0) if isinstance(outcome, SelvageError) else (outcome.queue, outcome.compute)
        started = end - round(compute * 1e9)
        arrived = started - round(queue * 1e9)
        span = self._tracer.start_span(
            f"job {type(job.work).__name__}",
            context=HEADERS.extract({"traceparent": job.traceparent}),
            kind=trace.SpanKind.CONSUMER,
            start_time=arrived,
            attributes={
                "selvage.request_id": job.request_id,
                "selvage.tokens": job.tokens.total,
                "selvage.sequences": len(job.tokens),
            },
        )
        if error is not None:
            span.set_attribute("error.type", error.reason)
            span.set_status(trace.StatusCode.ERROR)
        below = trace.set_span_in_context(span)
        for name, start, stop in (("queue", arrived, started), ("compute", started, end)) if error is None else ():
            self._tracer.start_span(name, context=below, start_time=start).end(stop)
        span.end(end)

    def stop(self) -> None:
        """Sends the remaining spans."""
        self._provider.shutdown()

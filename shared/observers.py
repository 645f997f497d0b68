"""Who is told of what happens: metrics for Prometheus and spans for OpenTelemetry, both off unless asked for.

Services, loop and link know these shapes and neither library. What is off is neither imported nor called.
"""

from __future__ import annotations  # names of libraries that need not be there

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import structlog

from shared.errors import SelvageError
from shared.jobs import Job, JobResult
from shared.settings import ServiceSettings

if TYPE_CHECKING:
    from shared.metrics import Page
    from shared.spans import Spans

COLLECTOR = "OTEL_EXPORTER_OTLP_ENDPOINT"
TellJob = Callable[[Job, JobResult | SelvageError], None]
"""Told of each job of a frontend when it is answered."""
TellStep = Callable[[float, int, int], None]
"""Told of each step that ended: seconds, tokens, sequences."""

log = structlog.get_logger("observers")


class Times(Protocol):
    """Where the time of a request went, in seconds; see `frontend_service.answer.Timing`."""

    @property
    def tokenize(self) -> float: ...
    @property
    def queue(self) -> float: ...
    @property
    def compute(self) -> float: ...
    @property
    def transfer(self) -> float: ...
    @property
    def postprocess(self) -> float: ...


TellTimes = Callable[[Times], None]


class Rpcs(Protocol):
    """Told of each rpc.

    `kind`: unary, client_stream, server_stream or bidi_stream; `code`: as gRPC's status codes are named.
    """

    def started(self, method: str, kind: str) -> None: ...
    def ended(self, method: str, kind: str, code: str, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendFigures:
    """What a frontend is like at one moment.

    `size`: bytes of requests; `results`: of what workers make of them; `unread`: of replies that are not read yet;
    `refused`: requests so far, by reason; `workers`: how many serve, by model; `waits`: seconds, at most, until the
    turn of a small new job, by model.
    """

    requests: int
    size: int
    results: int
    unread: int
    refused: Mapping[str, int]
    workers: Mapping[str, int]
    waits: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """What a worker is like at one moment; each part of it fills in what it knows.

    `refused`: jobs so far, by reason; `cancelled_waiting`: jobs so far; `unsent`: bytes of answers that frontends have
    not read; `memory`: bytes of the device by state, empty on a processor; `padding`: tokens so far by which steps were
    filled up to the size of a captured graph.
    """

    queued_tokens: int
    queued_jobs: int
    refused: Mapping[str, int]
    cancelled_waiting: int
    stalled: bool
    unsent: int = 0
    frontends: int = 0
    memory: Mapping[str, int] = field(default_factory=dict)
    padding: int = 0


def page(settings: ServiceSettings, *, shown: bool = False) -> Page | None:
    """The page that Prometheus reads, served from now on; ends the process with status 2 where it cannot be.

    `shown`: whether somebody else shows it, so that it is made even where it has no port of its own.
    """
    if not (settings.metrics or shown):
        return None
    from shared.metrics import Page

    made = Page()
    if not settings.metrics:
        return made
    try:
        log.info("metrics", address=made.start(settings.metrics))
    except OSError:
        print(f"--metrics = {settings.metrics!r}: the address cannot be bound", file=sys.stderr)
        raise SystemExit(2) from None
    return made


def spans(settings: ServiceSettings, service: str) -> Spans | None:
    """What sends spans to a collector, under the name `service`; needs the extra `trace`.

    Without it a process that was told --traces ends with status 2. One that has only the environment variable, which
    may be meant for others, says so in its log and serves.
    """
    collector = settings.traces or os.environ.get(COLLECTOR, "")
    if not collector:
        return None
    try:
        from shared.spans import Spans
    except ImportError:
        why = "OpenTelemetry is not installed: the extra trace brings it (in a checkout, pip install '.[trace]')"
        if settings.traces:
            print(f"--traces = {settings.traces!r}: {why}", file=sys.stderr)
            raise SystemExit(2) from None
        log.warning("no spans", why=why, collector=collector)
        return None
    log.info("spans", collector=collector)
    return Spans.to(collector, service)

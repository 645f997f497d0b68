"""Who is told of what happens: metrics for Prometheus and spans for OpenTelemetry, both off unless asked for.

What is off is neither imported nor called.
"""

from __future__ import annotations  # names of libraries that need not be there

import os
import sys
from typing import TYPE_CHECKING

import structlog

from shared.settings import ServiceSettings

if TYPE_CHECKING:
    from shared.telemetry.metrics import Page
    from shared.telemetry.spans import Spans

COLLECTOR = "OTEL_EXPORTER_OTLP_ENDPOINT"
log = structlog.get_logger("observers")


def page(settings: ServiceSettings, *, shown: bool = False) -> Page | None:
    """The page that Prometheus reads, served from now on; ends the process with status 2 where it cannot be.

    `shown`: whether somebody else shows it, so that it is made even where it has no port of its own.
    """
    if not (settings.metrics or shown):
        return None
    from shared.telemetry.metrics import Page

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
        from shared.telemetry.spans import Spans
    except ImportError:
        why = "OpenTelemetry is not installed: the extra trace brings it (in a checkout, pip install '.[trace]')"
        if settings.traces:
            print(f"--traces = {settings.traces!r}: {why}", file=sys.stderr)
            raise SystemExit(2) from None
        log.warning("no spans", why=why, collector=collector)
        return None
    log.info("spans", collector=collector)
    return Spans.to(collector, service)

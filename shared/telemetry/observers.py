"""Starts what the settings turn on: metrics for Prometheus, spans for OpenTelemetry. Both are off by default.

The library of what is off is not imported.
"""

from __future__ import annotations  # names of libraries that need not be there

import os
import sys
from typing import TYPE_CHECKING

import structlog

from shared.server.binding import refuse_address
from shared.settings import ServiceSettings

if TYPE_CHECKING:
    from shared.telemetry.metrics import Page
    from shared.telemetry.spans import Spans

COLLECTOR = "OTEL_EXPORTER_OTLP_ENDPOINT"
log = structlog.get_logger("observers")


def page(settings: ServiceSettings, *, shown: bool = False) -> Page | None:
    """Serves the page that Prometheus reads; ends the process with status 2 if the address cannot be bound.

    `shown`: whether another server shows the page too, so that it is made even without an address of its own.
    """
    if not (settings.metrics or shown):
        return None
    from shared.telemetry.metrics import Page

    metrics = Page()
    if not settings.metrics:
        return metrics
    try:
        log.info("metrics", address=metrics.start(settings.metrics))
    except OSError:
        refuse_address("--metrics", settings.metrics)
    return metrics


def spans(settings: ServiceSettings, service: str) -> Spans | None:
    """Starts sending spans to a collector under the name `service`; needs the extra `trace`.

    Without the extra, --traces ends the process with status 2. The environment variable alone, which may be meant for
    other programs, only causes a warning in the log.
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

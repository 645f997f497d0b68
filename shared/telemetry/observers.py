"""Starts metrics for Prometheus and spans for OpenTelemetry, where they are asked for. Both are off by default.

The library of what is off is not imported.
"""

from __future__ import annotations  # names of libraries that need not be there

import os
from typing import TYPE_CHECKING

import structlog

from shared.command import refuse_address
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


def spans(service: str) -> Spans | None:
    """Starts sending spans under the name `service` to the collector that COLLECTOR of the environment names.

    Without the extra `trace` a line in the log warns: the variable may be meant for other programs.
    """
    collector = os.environ.get(COLLECTOR, "")
    if not collector:
        return None
    try:
        from shared.telemetry.spans import Spans
    except ImportError:
        why = "OpenTelemetry is not installed: the extra trace brings it (in a checkout, pip install '.[trace]')"
        log.warning("no spans", why=why, collector=collector)
        return None
    log.info("spans", collector=collector)
    return Spans.to(collector, service)

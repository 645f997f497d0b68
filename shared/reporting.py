"""What a process reports: logs on standard error (one JSON object a line, or plain lines for a person; or through
`logging`), metrics for Prometheus and spans for OpenTelemetry, where they are asked for.

The library of what is off is not imported.
"""

from __future__ import annotations  # names of libraries that need not be there

import logging
import os
import sys
from typing import TYPE_CHECKING

import structlog

from shared.command import refuse_address
from shared.errors import printable
from shared.settings import ServiceSettings

if TYPE_CHECKING:
    from shared.metrics import Page
    from shared.spans import Spans

COLLECTOR = "OTEL_EXPORTER_OTLP_ENDPOINT"
log = structlog.get_logger("reporting")
_least_level = logging.DEBUG


def configure(level: str, *, console: bool) -> None:
    """Sets up structlog for this process: lines for a person on a `console`, else a JSON object a line.

    Called by `__main__` only.
    """
    global _least_level
    _least_level = logging.getLevelNamesMapping()[level.upper()]
    # The default renderer prints local variables with a trace, and those may hold texts of users.
    for_a_person = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    renderers = [_without_control, for_a_person] if console else [structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_least_level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),  # a line in one write: gRPC logs there too
        cache_logger_on_first_use=False,
    )


def tells_debug() -> bool:
    """Whether lines of the level debug may be told. A line that is not costs as much as a call's own work."""
    return _least_level <= logging.DEBUG


def _without_control(_: object, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """A line for a terminal. JSON and `repr` escape what controls it by themselves; only a trace has several lines."""
    for name, value in line.items():
        if isinstance(value, str):
            parts = value.split("\n") if name == "exception" else [value]
            line[name] = "\n".join(map(printable, parts))
    return line


def hand_to_logging() -> None:
    """Sends log lines to the application's loggers below `selvage`, unless structlog is configured already."""
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=lambda *names: logging.getLogger(".".join(("selvage", *names))),
        cache_logger_on_first_use=False,
    )


def page(settings: ServiceSettings, *, shown: bool = False) -> Page | None:
    """Serves the page that Prometheus reads; ends the process with status 2 if the address cannot be bound.

    `shown`: whether another server shows the page too, so that it is made even without an address of its own.
    """
    if not (settings.metrics or shown):
        return None
    from shared.metrics import Page

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
        from shared.spans import Spans
    except ImportError:
        why = "OpenTelemetry is not installed: the extra trace brings it (in a checkout, pip install '.[trace]')"
        log.warning("no spans", why=why, collector=collector)
        return None
    log.info("spans", collector=collector)
    return Spans.to(collector, service)

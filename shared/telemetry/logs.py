"""Structured logs on standard error: one JSON object a line, or plain lines for a person; or through `logging`."""

import logging
import sys

import structlog

from shared.errors import printable
from shared.settings import LogFormat


def configure(style: LogFormat, level: str) -> None:
    """Sets up structlog for this process. Called by `__main__` only."""
    renderers: dict[LogFormat, list[structlog.typing.Processor]] = {
        "json": [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()],
        "console": [
            structlog.processors.format_exc_info,
            _without_control,
            # The default one prints local variables with a trace, and those may hold texts of users.
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
    }
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderers[style],
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),  # a line in one write: gRPC logs there too
        cache_logger_on_first_use=False,
    )


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

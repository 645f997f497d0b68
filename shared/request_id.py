"""The name under which a request stands in the logs of both services. Knows no gRPC and no HTTP."""

import uuid
from collections.abc import Iterable

import structlog

LONGEST = 128
"""Letters of an id that a caller may choose: it stands in every line of the log."""


def chosen(given: Iterable[str]) -> str:
    """The first sensible one of those that the caller gave, else a new one."""
    for value in given:
        if 0 < len(value) <= LONGEST and value.isprintable():
            return value
    return uuid.uuid4().hex


def bind(request_id: str, trace_id: str = "") -> None:
    """Puts both into every line that this call logs; what an earlier call of the same task bound is gone."""
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(request_id=request_id, **({"trace_id": trace_id} if trace_id else {}))


def current() -> str:
    """Of the call that is being served; empty outside of any."""
    found: str = structlog.contextvars.get_contextvars().get("request_id", "")
    return found

"""The id of a request in the logs of both services. Knows no gRPC and no HTTP."""

import uuid
from collections.abc import Iterable

import structlog

LONGEST = 128
"""Most letters of an id that a caller chooses, because it is in every line of the log."""


def chosen(candidates: Iterable[str]) -> str:
    """The first usable one of the ids that the caller sent, else a new one."""
    for value in candidates:
        if 0 < len(value) <= LONGEST and value.isprintable():
            return value
    return uuid.uuid4().hex


def bind(request_id: str, trace_id: str = "") -> None:
    """Adds both ids to every line that this call logs, and removes those of an earlier call of the same task."""
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(request_id=request_id, **({"trace_id": trace_id} if trace_id else {}))


def current() -> str:
    """The request id of the call that is being served; empty outside of calls."""
    bound: str = structlog.contextvars.get_contextvars().get("request_id", "")
    return bound

"""The names of a call in logs and traces: its request id, and its position in a trace. Knows no API and no spans.

Without OpenTelemetry the services pass the headers of W3C Trace Context (version 00) on, and their logs name the trace.
"""

import re
import uuid
from collections.abc import Iterable
from contextvars import ContextVar

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


CURRENT: ContextVar[str] = ContextVar("traceparent", default="")
"""The traceparent of the call that is being served, which its jobs carry on; empty for no trace."""
LONGEST_STATE = 512
"""Most letters of a tracestate; a longer one is not passed on, as the specification allows."""
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE = re.compile(r"[\x20-\x7e\t]*")


def valid(traceparent: str) -> str:
    """The header as version 00 writes it; empty if it is malformed, which is no error: such a header is ignored.

    Of a later version, only the fields that version 00 has are used.
    """
    match = _FORM.fullmatch(traceparent.strip())
    if match is None:
        return ""
    version, trace, span, flags, more = match.groups()
    if version == "ff" or (version == "00" and more is not None) or not (trace.strip("0") and span.strip("0")):
        return ""
    return f"00-{trace}-{span}-{flags}"


def valid_state(tracestate: str) -> str:
    """The tracestate header, which vendors add to; empty if it is malformed or too long."""
    return tracestate if len(tracestate) <= LONGEST_STATE and _STATE.fullmatch(tracestate) else ""


def trace_id(traceparent: str) -> str:
    """The trace id in a valid traceparent, for logs; empty for no trace."""
    return traceparent[3:35]

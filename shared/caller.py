"""The caller of a request, read from the headers before the request itself; the terms on which it is served; the names
of its call in logs and traces: its request id and its position in a trace. Knows no gRPC, no HTTP and no spans.

Without OpenTelemetry the services pass the headers of W3C Trace Context (version 00) on, and their logs name the trace.
"""

import os
import re
import time
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field

import structlog

from shared.errors import InvalidInput, Unauthenticated, clip
from shared.jobs import PRIORITIES, Priority

REQUEST_ID, KEY, PRIORITY, AUTHORIZATION = "x-request-id", "selvage-key", "selvage-priority", "authorization"
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
READ = frozenset({KEY, PRIORITY, AUTHORIZATION, TRACEPARENT, TRACESTATE})
"""Headers that tell something of the caller."""
LONGEST_KEY = 128
"""Most letters of a fairness key; what follows them is ignored."""
LONGEST_ID = 128
"""Most letters of an id that a caller chooses, because it is in every line of the log."""
LONGEST_STATE = 512
"""Most letters of a tracestate; a longer one is not passed on, as the specification allows."""
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE = re.compile(r"[\x20-\x7e\t]*")


@dataclass(slots=True, eq=False)
class Quota:
    """How many requests are in progress, or streams open: of all callers, or of those with one API key. At most `most`
    at once."""

    most: int
    running: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What an API knows of a call before it reads the request.

    `method`: the name of the call in the log; `remaining`: seconds that the caller waits, None if it set no deadline;
    `key`: the fairness key, callers of different keys share the workers evenly; `priority`: None if the caller set
    none; `traceparent`, `tracestate`: the position in a trace as W3C Trace Context writes it, valid or empty;
    `secret`: the bearer token that proves who the caller is; `quota`, `stream_quota`: the limits of requests and of
    streams of its API key, whose hash is `credential`; `host`: the address that it calls from, as gRPC writes it, which
    may be a proxy's.
    """

    method: str
    request_id: str
    remaining: float | None = None
    key: str = ""
    priority: Priority | None = None
    traceparent: str = ""
    tracestate: str = ""
    secret: str = field(default="", repr=False)
    quota: Quota | None = None
    stream_quota: Quota | None = None
    credential: str = field(default="", repr=False)
    host: str = ""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of the monotonic clock, in seconds."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """A deadline that is `seconds` from now."""
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left, 0 when it has passed."""
        return max(0.0, self.at - time.monotonic())


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTerms:
    """The deadline, fairness key and priority of a request, and its id in logs and traces."""

    deadline: Deadline
    key: str = ""
    priority: Priority = Priority.DEFAULT
    request_id: str = ""
    traceparent: str = ""

    @classmethod
    def within(cls, seconds: float) -> "RequestTerms":
        """Terms with a deadline in `seconds` and defaults for the rest."""
        return cls(deadline=Deadline.after(seconds))


TERMS: ContextVar[RequestTerms] = ContextVar("terms")
"""The terms on which the current call is served, set by `Calls` for the services."""


def chosen_id(headers: Iterable[tuple[str, str | bytes]]) -> str:
    """The request id from the headers if it is usable, else a new one."""
    for name, value in headers:
        if name == REQUEST_ID and isinstance(value, str) and 0 < len(value) <= LONGEST_ID and value.isprintable():
            return value
    return os.urandom(16).hex()


def caller_of(
    method: str, name: str, headers: Iterable[tuple[str, str]], *, host: str, remaining: float | None
) -> Caller:
    """Reads the caller from headers, whose names are in lower case.

    `name`: the request id; `host`: the caller's address, the fairness key of callers that set none. Raises InvalidInput
    for an unknown priority, Unauthenticated for several authorizations: each could be meant.
    """
    values: dict[str, list[str]] = {}
    for header, value in headers:
        if header in READ:
            values.setdefault(header, []).append(value)
    authorizations = values.get(AUTHORIZATION, ())
    if len(authorizations) > 1:
        raise Unauthenticated(repeated(AUTHORIZATION, len(authorizations)), field=AUTHORIZATION)
    # Of other headers the last value counts; a tracestate may come in several, whose order counts.
    parent = valid_traceparent(values[TRACEPARENT][-1]) if TRACEPARENT in values else ""
    return Caller(
        method=method,
        request_id=name,
        remaining=remaining,
        key=(values[KEY][-1][:LONGEST_KEY] if KEY in values else "") or host,
        priority=_priority(values[PRIORITY][-1]) if PRIORITY in values else None,
        traceparent=parent,
        tracestate=valid_tracestate(",".join(values.get(TRACESTATE, ()))) if parent else "",
        secret=_bearer(authorizations[0]) if authorizations else "",
        host=host,
    )


def repeated(header: str, times: int) -> str:
    """The words for a header that comes several times, where it may come once."""
    return f"{header} comes {times} times, it may come once"


def host_of(address: str) -> str:
    """Writes an IP address as gRPC writes a peer's, so that a machine is the same caller over every API."""
    return f"ipv6:%5B{address}%5D" if ":" in address else f"ipv4:{address}"


def _priority(value: str) -> Priority:
    word = value.lower()
    if word not in PRIORITIES:
        raise InvalidInput(f"{PRIORITY} is {clip(word)}, there are {', '.join(PRIORITIES)}", field=PRIORITY)
    return PRIORITIES[word]


def _bearer(authorization: str) -> str:
    """The token of a bearer authorization (RFC 6750), empty for other schemes."""
    scheme, _, secret = authorization.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def bind_ids(request_id: str, trace_id: str = "") -> None:
    """Adds both ids to every line that this call logs, and removes those of an earlier call of the same task."""
    structlog.contextvars.bind_contextvars(request_id=request_id)
    if trace_id:
        structlog.contextvars.bind_contextvars(trace_id=trace_id)
    else:
        structlog.contextvars.unbind_contextvars("trace_id")


def valid_traceparent(traceparent: str) -> str:
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


def valid_tracestate(tracestate: str) -> str:
    """The tracestate header, which vendors add to; empty if it is malformed or too long."""
    return tracestate if len(tracestate) <= LONGEST_STATE and _STATE.fullmatch(tracestate) else ""


def trace_id_of(traceparent: str) -> str:
    """The trace id in a valid traceparent, for logs; empty for no trace."""
    return traceparent[3:35]

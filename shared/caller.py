"""The caller of a request, read from the headers before the request itself is read. Knows no gRPC and no HTTP."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from shared import trace_context
from shared.errors import InvalidInput, Unauthenticated, clip
from shared.jobs import PRIORITIES, Priority

REQUEST_ID, KEY, PRIORITY, AUTHORIZATION = "x-request-id", "selvage-key", "selvage-priority", "authorization"
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
LAST_COUNTS = frozenset({KEY, PRIORITY, TRACEPARENT})
"""Headers whose last value counts where they occur several times."""
LONGEST_KEY = 128
"""Most letters of a fairness key; what follows them is ignored."""


@dataclass(slots=True, eq=False)
class Quota:
    """The requests in progress, or the open streams, of all callers with one API key; at most `most` at once."""

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


def chosen_id(headers: Iterable[tuple[str, str | bytes]]) -> str:
    """The request id from the headers if it is usable, else a new one."""
    return trace_context.chosen(value for name, value in headers if name == REQUEST_ID and isinstance(value, str))


def caller_of(
    method: str, name: str, headers: Iterable[tuple[str, str]], *, host: str, remaining: float | None
) -> Caller:
    """Reads the caller from headers, whose names are in lower case.

    `name`: the request id; `host`: the caller's address, the fairness key of callers that set none. Raises InvalidInput
    for an unknown priority, Unauthenticated for several authorizations: each could be meant.
    """
    values: dict[str, str] = {}
    states, authorizations = [], []
    for header, value in headers:
        if header in LAST_COUNTS:
            values[header] = value
        elif header == AUTHORIZATION:
            authorizations.append(value)
        elif header == TRACESTATE:  # may come in several headers, whose order counts
            states.append(value)
    if len(authorizations) > 1:
        raise Unauthenticated(repeated(AUTHORIZATION, len(authorizations)), field=AUTHORIZATION)
    parent = trace_context.valid(values.get(TRACEPARENT, ""))
    return Caller(
        method=method,
        request_id=name,
        remaining=remaining,
        key=values.get(KEY, "")[:LONGEST_KEY] or host,
        priority=_priority(values[PRIORITY]) if PRIORITY in values else None,
        traceparent=parent,
        tracestate=trace_context.valid_state(",".join(states)) if parent else "",
        secret=_bearer("".join(authorizations)),
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

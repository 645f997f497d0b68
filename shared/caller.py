"""Who calls: what a door knows of a call before it reads it, and what its headers tell. Knows no gRPC and no HTTP."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from shared import request_id, traceparent
from shared.errors import InvalidInput, clip
from shared.jobs import PRIORITIES, Priority

REQUEST_ID, KEY, PRIORITY, AUTHORIZATION = "x-request-id", "selvage-key", "selvage-priority", "authorization"
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
ONCE = frozenset({KEY, PRIORITY, AUTHORIZATION, TRACEPARENT})
"""Headers of which the last one counts."""
LONGEST_KEY = 128
"""Letters of a fairness key that count."""


@dataclass(slots=True, eq=False)
class Quota:
    """Requests that are being answered for some callers together, of which there may be `most` at once."""

    most: int
    running: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What a door knows of a call before it reads it.

    `method` is what the log calls it; `remaining`: seconds that the caller waits, None where it did not say; `key`:
    for whom it is, callers of different keys share the workers evenly; `priority`: how urgent it is, None where it did
    not say; `traceparent`, `tracestate`: its place in a trace as W3C Trace Context writes it, valid ones or empty;
    `secret`: by which it proves who it is; `quota`: of those it belongs to.
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


def chosen_id(headers: Iterable[tuple[str, str | bytes]]) -> str:
    """The caller's own id of its request where it gave a sensible one, else a new one."""
    return request_id.chosen(value for name, value in headers if name == REQUEST_ID and isinstance(value, str))


def caller_of(
    method: str, name: str, headers: Iterable[tuple[str, str]], *, host: str, remaining: float | None
) -> Caller:
    """By what the headers tell, whose names are in small letters. `name`: the request id; `host`: whence it comes.

    Raises InvalidInput for a priority that there is none.
    """
    given: dict[str, str] = {}
    states = []
    for header, value in headers:
        if header in ONCE:
            given[header] = value
        elif header == TRACESTATE:  # it may come in several parts, whose order counts
            states.append(value)
    parent = traceparent.valid(given.get(TRACEPARENT, ""))
    return Caller(
        method=method,
        request_id=name,
        remaining=remaining,
        key=given.get(KEY, "")[:LONGEST_KEY] or host,
        priority=_priority(given[PRIORITY]) if PRIORITY in given else None,
        traceparent=parent,
        tracestate=traceparent.valid_state(",".join(states)) if parent else "",
        secret=_bearer(given.get(AUTHORIZATION, "")),
    )


def host_of(address: str) -> str:
    """Of whoever calls from an address, as gRPC writes it: one machine is one caller, by any door."""
    return f"ipv6:%5B{address}%5D" if ":" in address else f"ipv4:{address}"


def _priority(given: str) -> Priority:
    word = given.lower()
    if word not in PRIORITIES:
        raise InvalidInput(f"{PRIORITY} is {clip(word)}, there are {', '.join(PRIORITIES)}", field=PRIORITY)
    return PRIORITIES[word]


def _bearer(authorization: str) -> str:
    """RFC 6750; other schemes prove nothing here."""
    scheme, _, secret = authorization.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""

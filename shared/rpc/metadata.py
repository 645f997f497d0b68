"""Metadata of a call <-> who calls: its request id, for whom it is, how urgent it is."""

from typing import Any

from shared import request_id, traceparent
from shared.calls import Caller
from shared.errors import InvalidInput, clip
from shared.jobs import Priority

REQUEST_ID, KEY, PRIORITY = "x-request-id", "selvage-key", "selvage-priority"
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
LONGEST_KEY = 128
"""Letters of a fairness key that count."""
PRIORITIES = {each.name.lower(): each for each in Priority}


def request_id_of(metadata: Any) -> str:
    """The caller's id where it gave a sensible one, else a new one."""
    return request_id.chosen(value for key, value in metadata or () if key == REQUEST_ID and isinstance(value, str))


def caller_of(method: str, name: str, context: Any) -> Caller:
    """Who calls; `name`: the request id. Raises InvalidInput for a priority that there is none."""
    metadata = context.invocation_metadata() or ()
    given = {key: value for key, value in metadata if key in (KEY, PRIORITY, TRACEPARENT)}
    priority = given.get(PRIORITY, Priority.DEFAULT.name).lower()
    if priority not in PRIORITIES:
        raise InvalidInput(f"{PRIORITY} is {clip(priority)}, there are {', '.join(PRIORITIES)}", field=PRIORITY)
    return Caller(
        method=method,
        request_id=name,
        remaining=context.time_remaining(),
        key=given.get(KEY, "")[:LONGEST_KEY] or _host(context.peer()),
        priority=PRIORITIES[priority],
        traceparent=(parent := traceparent.valid(given.get(TRACEPARENT, ""))),
        tracestate=_state(metadata) if parent else "",
    )


def _state(metadata: Any) -> str:
    """It may come in several parts, whose order counts."""
    return traceparent.valid_state(",".join(value for key, value in metadata if key == TRACESTATE))


def _host(peer: str) -> str:
    """Of ipv4:10.0.0.7:4711 or ipv6:%5B::1%5D:4711, without the port: one machine is one caller."""
    return peer.rpartition(":")[0] if peer.startswith("ip") else peer

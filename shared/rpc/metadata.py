"""The request id as metadata of a call: from the caller, and on to the service that is called next."""

from typing import Any

from shared import request_id

REQUEST_ID = "x-request-id"


def request_id_of(metadata: Any) -> str:
    """The caller's id where it gave a sensible one, else a new one."""
    return request_id.chosen(value for key, value in metadata or () if key == REQUEST_ID and isinstance(value, str))


def call_metadata() -> tuple[tuple[str, str], ...]:
    """What an outgoing call carries on: the id of the request that it serves."""
    current = request_id.current()
    return ((REQUEST_ID, current),) if current else ()

"""How the body of a request arrives: counted as it comes, limited in bytes and in time."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from frontend_service.api.http.errors import HttpError
from frontend_service.api.http.reply import JSON
from shared.server.admission import Admission, Holding

BODY_BYTES = 64 * 1024 * 1024
"""Longest body of a request: four times a message over gRPC, since the budget counts it as it comes."""

Headers = Sequence[tuple[str, str]]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]


class CallerGone(asyncio.CancelledError):
    """The caller has disconnected, so no reply is sent."""


def check_body_headers(headers: Headers) -> None:
    """Raises HttpError where the headers say that the body is too large or compressed, or not that it is JSON.

    A body that is not declared as JSON could come from any web page: browsers send it without a CORS preflight.
    """
    if not any(name == "content-type" and _is_json(value) for name, value in headers):
        raise HttpError(415, f"the body must be {JSON} and say so: with curl, add -H 'content-type: {JSON}'")
    for name, value in headers:
        if name == "content-encoding" and value.strip().lower() not in ("", "identity"):
            raise HttpError(415, "compressed bodies are not taken")
        if name == "content-length" and value.isdecimal():
            _check_length(int(value))


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or (kind.startswith("application/") and kind.endswith("+json"))


async def read_body(receive: Receive, admission: Admission, holding: Holding) -> bytes:
    """Reads the whole body. Raises HttpError, Overloaded, DeadlineExceeded, CallerGone."""
    seconds = admission.bounds.read_seconds
    try:
        async with asyncio.timeout(seconds):
            return await _read_parts(receive, holding)
    except TimeoutError:
        raise admission.refusals.too_slow(seconds) from None


async def _read_parts(receive: Receive, holding: Holding) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CallerGone
        part: bytes = message.get("body", b"")
        _check_length(len(body) + len(part))
        holding.add(len(part))
        if not message.get("more_body", False):
            return bytes(body + part) if body else part
        body += part


def _check_length(length: int) -> None:
    if length > BODY_BYTES:
        raise HttpError(413, f"the body has {length} bytes or more, the limit is {BODY_BYTES}")

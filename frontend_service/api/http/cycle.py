"""One request of a connection and its one response, as ASGI has them.

Specification: asgi.readthedocs.io, HTTP 2.3.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Protocol

JOINED = 64 * 1024
"""Longest body that is written together with its head, in bytes."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class Wire(Protocol):
    """The connection as a cycle sees it."""

    async def writable(self) -> None:
        """Returns when most of what was written has left, or the connection is lost."""

    def write(self, data: bytes | memoryview) -> None: ...

    def taken(self) -> None:
        """Notes that the application has taken all bytes of the body so far."""

    def answered(self, cycle: "Cycle") -> None:
        """Notes that the whole response has been written."""


class Cycle:
    """A request whose head has arrived, and its response.

    `keep_alive`: another request may follow; `is_running`: the application has begun to answer; `has_begun`: the
    response has begun; `is_over`: the response is written, or the caller no longer wants it.
    """

    __slots__ = (
        "_changed",
        "_head",
        "_invites",
        "_is_end_taken",
        "_is_whole",
        "_part",
        "_wire",
        "has_begun",
        "is_over",
        "is_running",
        "keep_alive",
        "scope",
    )

    def __init__(self, scope: Mapping[str, Any], wire: Wire, *, keep_alive: bool, invites: bool) -> None:
        """`invites`: the caller waits for an invitation before it sends the body (Expect: 100-continue)."""
        self.scope, self.keep_alive = scope, keep_alive
        self._wire, self._invites = wire, invites
        self.is_running = self.has_begun = self.is_over = self._is_whole = self._is_end_taken = False
        self._part = bytearray()
        self._head = b""
        self._changed = asyncio.Event()

    @property
    def held(self) -> int:
        """Bytes of the body that the application has not taken yet."""
        return len(self._part)

    def arrive(self, part: bytes) -> None:
        """Adds the next bytes of the body."""
        self._part += part
        self._changed.set()

    def end(self) -> None:
        """Notes that the request is whole."""
        self._is_whole = True
        self._changed.set()

    def leave(self) -> None:
        """Ends the cycle: nothing more is written."""
        self.is_over = True
        self._part.clear()
        self._changed.set()

    def fail(self) -> None:
        """Answers with status 500, unless the response has begun."""
        if not (self.has_begun or self.is_over):
            self._begin(500, [(b"content-length", b"0")])
            self._write_body(b"", is_last=True)

    async def receive(self) -> Mapping[str, Any]:
        """Returns the next part of the body. After the last one, waits until the cycle is over."""
        if self._invites:
            self._invites = False
            if not (self._part or self._is_whole or self.is_over):
                self._wire.write(CONTINUE)
        while not self.is_over:
            if self._part or (self._is_whole and not self._is_end_taken):
                body = bytes(self._part)
                self._part.clear()
                self._is_end_taken = self._is_whole
                self._wire.taken()
                return {"type": "http.request", "body": body, "more_body": not self._is_whole}
            self._changed.clear()
            await self._changed.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Mapping[str, Any]) -> None:
        """Writes a message of the response, once most earlier bytes have left; nothing when the cycle is over.

        The head is written together with the first part of the body.
        """
        await self._wire.writable()
        if self.is_over:
            return
        if message["type"] == "http.response.start":
            self._begin(message["status"], message["headers"])
        else:
            self._write_body(message["body"], is_last=not message["more_body"])

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.has_begun = True
        self.keep_alive = self.keep_alive and not self._invites  # a body without invitation may never come
        self._head = _head(status, headers, self.keep_alive)

    def _write_body(self, body: bytes | memoryview, *, is_last: bool) -> None:
        if self.scope["method"] == "HEAD":
            body = b""
        head, self._head = self._head, b""
        if len(body) <= JOINED:
            body, head = head + body, b""
        for piece in (head, body):
            if piece:
                self._wire.write(piece)
        if is_last:
            self.leave()
            self._wire.answered(self)


def _head(status: int, headers: Iterable[tuple[bytes, bytes]], keep_alive: bool) -> bytes:
    lines = [b"%b: %b\r\n" % header for header in headers]
    if not keep_alive:
        lines.append(b"connection: close\r\n")
    head = b"".join((STATUS_LINES[status], _date(int(time.time())), *lines, b"\r\n"))
    assert head.count(b"\n") == len(lines) + 3, "a line break in a header would begin another one"
    return head


@lru_cache(1)
def _date(now: int) -> bytes:
    """The date line for a time in seconds since 1970."""
    return f"date: {formatdate(now, usegmt=True)}\r\n".encode()


def refusal(status: int, message: str) -> bytes:
    """A whole response to bytes that are no request; the connection ends after it."""
    body = message.encode()
    headers = ((b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body)))
    return _head(status, headers, keep_alive=False) + body

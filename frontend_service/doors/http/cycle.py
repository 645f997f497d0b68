"""One request of a connection and its one response, as ASGI has both.

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
"""Bytes of a body up to which it leaves in one piece with its head."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class Wire(Protocol):
    """What a cycle knows of its connection."""

    async def writable(self) -> None:
        """Returns when most of what was written has left, or the connection is lost."""

    def write(self, data: bytes) -> None: ...

    def taken(self) -> None:
        """What was there of the body has been taken."""

    def answered(self, cycle: "Cycle") -> None:
        """The whole response has been written."""


class Cycle:
    """A request whose head has arrived, and what is written in return.

    `is_running`: the app has it; `has_begun`: so has its response; `is_over`: it has its response, or nobody wants it;
    `held`: bytes of its body that nobody has taken yet.
    """

    __slots__ = (
        "_event",
        "_head",
        "_invites",
        "_parts",
        "_told_end",
        "_whole",
        "_wire",
        "has_begun",
        "held",
        "is_over",
        "is_running",
        "keep_alive",
        "scope",
    )

    def __init__(self, scope: Mapping[str, Any], wire: Wire, *, keep_alive: bool, invites: bool) -> None:
        """`invites`: the caller sends its body when it is told to (Expect: 100-continue)."""
        self.scope, self.keep_alive = scope, keep_alive
        self._wire, self._invites = wire, invites
        self.is_running = self.has_begun = self.is_over = self._whole = self._told_end = False
        self.held = 0
        self._parts: list[bytes] = []
        self._head = b""
        self._event = asyncio.Event()

    def arrive(self, part: bytes) -> None:
        """A part of the body."""
        self._parts.append(part)
        self.held += len(part)
        self._event.set()

    def end(self) -> None:
        """The request is whole."""
        self._whole = True
        self._event.set()

    def leave(self) -> None:
        """Nobody is to be answered any more."""
        self.is_over = True
        self._parts, self.held = [], 0
        self._event.set()

    async def receive(self) -> Mapping[str, Any]:
        """The next part of the body; after the last one, waits until the caller has gone or has its response."""
        if self._invites:
            self._invites = False
            if not (self._parts or self._whole or self.is_over):
                self._wire.write(CONTINUE)
        while not self.is_over:
            if self._parts or (self._whole and not self._told_end):
                body, self._parts, self.held = b"".join(self._parts), [], 0
                self._told_end = self._whole
                self._wire.taken()
                return {"type": "http.request", "body": body, "more_body": not self._whole}
            self._event.clear()
            await self._event.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Mapping[str, Any]) -> None:
        """Writes once most of what was written before has left; nothing where nobody is there. The head waits for the
        first part of the body.
        """
        await self._wire.writable()
        if self.is_over:
            return
        if message["type"] == "http.response.start":
            self.has_begun = True
            self.keep_alive = self.keep_alive and not self._invites  # a body that was not asked for may never come
            self._head = _head(message["status"], message["headers"], self.keep_alive)
            return
        self._write(message["body"] if self.scope["method"] != "HEAD" else b"")
        if not message["more_body"]:
            self.leave()
            self._wire.answered(self)

    def _write(self, body: bytes) -> None:
        head, self._head = self._head, b""
        if len(body) <= JOINED:
            body, head = head + body, b""
        for part in (head, body):
            if part:
                self._wire.write(part)


def _head(status: int, headers: Iterable[tuple[bytes, bytes]], keep_alive: bool) -> bytes:
    lines = [b"%b: %b\r\n" % header for header in headers]
    if not keep_alive:
        lines.append(b"connection: close\r\n")
    head = b"".join((STATUS_LINES[status], _date(int(time.time())), *lines, b"\r\n"))
    assert head.count(b"\n") == len(lines) + 3, "a line break in a header would begin another one"
    return head


@lru_cache(1)
def _date(now: int) -> bytes:
    """The line of a second since 1970."""
    return f"date: {formatdate(now, usegmt=True)}\r\n".encode()


def refusal(status: int, message: str) -> bytes:
    """A whole response to what cannot be read as a request, after which the connection ends."""
    body = message.encode()
    headers = ((b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body)))
    return _head(status, headers, keep_alive=False) + body

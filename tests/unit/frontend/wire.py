"""Bytes to the port of the HTTP API and back, as they are on the wire."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from asgi import HttpApi

from frontend_service.api.http.port import HttpServer
from shared.errors import Unauthenticated
from shared.security import Fresh, Identity
from shared.server.calls import Calls

PATH = b"/v1/embeddings"
BODY = b'{"input": "a b"}'
AFTER = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, kw_only=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@asynccontextmanager
async def serving(api: HttpApi, tls: Fresh[Identity] | None = None) -> AsyncIterator[tuple[str, int]]:
    """Its address."""
    server = HttpServer(api.app, tls, 1.0)
    await server.start("127.0.0.1:0")
    try:
        yield server.address
    finally:
        await server.stop()


def post(*lines: bytes, body: bytes = BODY, path: bytes = PATH, framed: bool = True) -> bytes:
    """A request with more header lines; `framed`: with its Content-Length."""
    length = (b"Content-Length: %d" % len(body),) if framed else ()
    head = (b"POST %b HTTP/1.1" % path, b"Host: localhost", b"Content-Type: application/json", *length, *lines)
    return b"\r\n".join((*head, b"", b"")) + body


def chunked(body: bytes = BODY, trailers: Sequence[bytes] = (), size: int = 5) -> bytes:
    """A body in chunks."""
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    lines = [b"%x\r\n%b\r\n" % (len(part), part) for part in parts]
    return b"".join((*lines, b"0\r\n", *(trailer + b"\r\n" for trailer in trailers), b"\r\n"))


async def exchange(
    address: tuple[str, int], *pieces: bytes, pause: float = 0.0, tls: ssl.SSLContext | None = None
) -> list[Response]:
    """What comes back until the other side ends; `pieces` are sent with a `pause` between."""
    reader, writer = await asyncio.open_connection(*address, ssl=tls)
    try:
        for number, piece in enumerate(pieces):
            await asyncio.sleep(pause if number else 0.0)
            writer.write(piece)
        return responses(await reader.read())
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def responses(raw: bytes) -> list[Response]:
    """All of them, none to HEAD; those that ask to go on are left out."""
    replies = []
    while raw:
        head, _, raw = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        assert first.startswith("HTTP/1.1 "), first
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        status = int(first.split(" ")[1])
        if status != 100:
            assert len(headers) == len(lines), "no header comes twice"
            replies.append(Response(status=status, headers=headers, body=raw[:length]))
        raw = raw[length:]
    return replies


def statuses(replies: Sequence[Response]) -> list[int]:
    """In their order."""
    return [response.status for response in replies]


def refuses_strangers() -> Calls:
    """Only who has the key is let in."""

    def identify(caller: object) -> object:
        if getattr(caller, "secret", "") != "right":
            raise Unauthenticated("no such key")
        return caller

    return Calls(timeout=600, identify=identify)  # type: ignore[arg-type]

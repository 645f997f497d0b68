"""What is still sent after its response: read and dropped, within bounds, so that the response arrives."""

import asyncio
import socket
import ssl
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from asgi import HttpApi, Worker
from wire import AFTER, Response, post, responses, serving, statuses, told

from frontend_service.api.http import connection
from shared.errors import Overloaded, Unauthenticated
from shared.security import identity
from shared.server.calls import Calls
from support.certificates import Authority

LARGE = 20_000_000
CLOSE = b"Connection: close"


def sent_whole(address: tuple[str, int], pieces: Sequence[bytes], context: ssl.SSLContext | None) -> list[Response]:
    """What a caller gets that sends everything first, and looks only then."""
    with ExitStack() as stack:
        caller = stack.enter_context(socket.create_connection(address, timeout=240))
        if context is not None:
            caller = stack.enter_context(context.wrap_socket(caller, server_hostname=address[0]))
        for piece in pieces:
            caller.sendall(piece)
        raw = bytearray()
        while part := caller.recv(65536):
            raw += part
        return responses(bytes(raw))


def unknown(_: object) -> object:
    raise Unauthenticated("no such key")


def strict() -> Calls:
    """Nobody is let in."""
    return Calls(timeout=600, identify=unknown)  # type: ignore[arg-type]


def busy(_: object) -> None:
    raise Overloaded("too much at once", retry_after=1.0)


def full() -> Calls:
    """Nobody is let in at present."""
    return Calls(timeout=600, check=busy)


REFUSED = [
    ("/v1/embeddings", (), strict, 401),
    ("/v1/embeddings", (), full, 429),
    ("/v1/embeddings", (b"Content-Encoding: gzip",), None, 415),
    ("/v1/embeddings", (b"Selvage-Timeout: none",), None, 400),
    ("/none", (), None, 404),
    ("/health", (), None, 405),
]


@pytest.mark.parametrize(("path", "lines", "calls", "status"), REFUSED)
@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("is_chunked", [True, False])
async def test_a_refusal_reaches_who_reads_only_afterwards(
    path: str, lines: tuple[bytes, ...], calls: object, status: int, closes: bool, is_chunked: bool
) -> None:
    """Whether the connection ends then, or has another request."""
    api = HttpApi(Worker(), calls() if callable(calls) else None)
    framing = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % LARGE
    head = post(framing, *lines, *([CLOSE] if closes else []), path=path.encode(), body=b"", framed=False)
    body = [b"%x\r\n" % LARGE, bytes(LARGE), b"\r\n0\r\n\r\n"] if is_chunked else [bytes(LARGE)]
    next_one = [] if closes else [b"GET /docs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"]
    async with serving(api) as address:
        found = await asyncio.to_thread(sent_whole, address, [head, *body, *next_one], None)
    assert statuses(found) == [status, *([] if closes else [200])]


@pytest.mark.parametrize("closes", [True, False])
async def test_a_body_that_is_too_large_is_told_so(closes: bool) -> None:
    """By its length, or by what has come of it."""
    size = 70_000_000
    head = post(b"Content-Length: %d" % size, *([CLOSE] if closes else []), body=b"", framed=False)
    chunks = post(b"Transfer-Encoding: chunked", CLOSE, body=b"%x\r\n" % size, framed=False)
    async with serving(HttpApi(Worker())) as address:
        for pieces in ([head, bytes(size), *([] if closes else [AFTER])], [chunks, bytes(size), b"\r\n0\r\n\r\n"]):
            found = await asyncio.to_thread(sent_whole, address, pieces, None)
            assert statuses(found)[0] == 413
            assert len(found) == (2 if pieces[-1] is AFTER else 1)


@pytest.mark.parametrize("closes", [True, False])
async def test_the_same_over_tls(tmp_path: Path, closes: bool) -> None:
    """Where a connection cannot be half open."""
    authority = Authority(tmp_path)
    files = authority.files("server", "127.0.0.1")
    shown = identity(str(files.certificate), str(files.key), "", lambda _: None)
    context = ssl.create_default_context(cafile=str(authority.file))
    head = post(b"Content-Length: %d" % LARGE, *([CLOSE] if closes else []), path=b"/none", body=b"", framed=False)
    async with serving(HttpApi(Worker()), shown) as address:
        found = await asyncio.to_thread(
            sent_whole, address, [head, bytes(LARGE), *([] if closes else [AFTER])], context
        )
    assert statuses(found) == [404, *([] if closes else [200])]


async def test_what_is_no_request_may_be_long() -> None:
    """Its refusal arrives too."""
    async with serving(HttpApi(Worker())) as address:
        found = await asyncio.to_thread(sent_whole, address, [b"\x00" * LARGE], None)
    assert statuses(found) == [400]


async def test_what_follows_the_last_request_spoils_nothing() -> None:
    """However much it is."""
    asked = post(CLOSE)
    async with serving(HttpApi(Worker())) as address:
        found = await asyncio.to_thread(sent_whole, address, [asked, AFTER * 10_000], None)
    assert statuses(found) == [200]


async def is_ended(address: tuple[str, int], first: bytes, then: bytes) -> bool:
    """Whether who sends `then` again and again is cut off."""
    _, writer = await asyncio.open_connection(*address)
    writer.write(first)
    with suppress(ConnectionError):
        while True:
            writer.write(then)
            await writer.drain()
            await asyncio.sleep(0.001)
    writer.transport.abort()
    return True


@pytest.mark.parametrize("first", [post(body=b"", path=b"/none"), b"nonsense\r\n\r\n", post(CLOSE)])
@pytest.mark.parametrize(
    ("bound", "value", "then"), [("REST_SECONDS", 0.2, b"x"), ("REST_BYTES", 100_000, b"x" * 9999)]
)
async def test_it_is_bounded(
    monkeypatch: pytest.MonkeyPatch, first: bytes, bound: str, value: float, then: bytes
) -> None:
    """In time and in bytes."""
    monkeypatch.setattr(connection, bound, value)
    asked = first.replace(b"Content-Length: 0", b"Content-Length: 90000")
    async with serving(HttpApi(Worker())) as address:
        assert await is_ended(address, asked, then)


async def test_a_drain_does_not_wait_for_it() -> None:
    """A connection that only lingers is closed."""
    async with serving(HttpApi(Worker())) as address:
        assert statuses(await told(address, AFTER)) == [200]
        lingering = await asyncio.open_connection(*address)
        lingering[1].write(AFTER)
        assert await lingering[0].read()
    lingering[1].close()

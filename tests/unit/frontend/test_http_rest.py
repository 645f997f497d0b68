"""Connections of the HTTP API: what is still sent after a refusal is read and dropped, and what a drain answers."""

import asyncio
import socket
import ssl
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from asgi import HttpApi, Worker
from wire import AFTER, Response, post, responses, serving, statuses, told

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
@pytest.mark.parametrize("is_chunked", [True, False])
async def test_a_refusal_reaches_who_reads_only_afterwards(
    path: str, lines: tuple[bytes, ...], calls: object, status: int, is_chunked: bool
) -> None:
    """And the next request of the connection is another one."""
    api = HttpApi(Worker(), calls() if callable(calls) else None)
    framing = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % LARGE
    head = post(framing, *lines, path=path.encode(), body=b"", framed=False)
    body = [b"%x\r\n" % LARGE, bytes(LARGE), b"\r\n0\r\n\r\n"] if is_chunked else [bytes(LARGE)]
    next_one = b"GET /docs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    async with serving(api) as address:
        found = await asyncio.to_thread(sent_whole, address, [head, *body, next_one], None)
    assert statuses(found) == [status, 200]


async def test_a_body_that_is_too_large_is_told_so() -> None:
    """By its length, or by what has come of it."""
    size = 70_000_000
    head = post(b"Content-Length: %d" % size, body=b"", framed=False)
    chunks = post(b"Transfer-Encoding: chunked", body=b"%x\r\n" % size, framed=False)
    async with serving(HttpApi(Worker())) as address:
        for pieces in ([head, bytes(size), AFTER], [chunks, bytes(size), b"\r\n0\r\n\r\n" + AFTER]):
            assert statuses(await asyncio.to_thread(sent_whole, address, pieces, None)) == [413, 200]


async def test_the_same_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.files("server", "127.0.0.1")
    shown = identity(str(files.certificate), str(files.key), "", lambda _: None)
    context = ssl.create_default_context(cafile=str(authority.file))
    head = post(b"Content-Length: %d" % LARGE, path=b"/none", body=b"", framed=False)
    async with serving(HttpApi(Worker()), shown) as address:
        found = await asyncio.to_thread(sent_whole, address, [head, bytes(LARGE), AFTER], context)
    assert statuses(found) == [404, 200]


async def test_what_follows_the_last_request_is_not_answered() -> None:
    async with serving(HttpApi(Worker())) as address:
        assert statuses(await told(address, post(CLOSE) + AFTER * 10)) == [200]


async def test_a_drain_answers_what_runs_and_closes_what_idles() -> None:
    worker = Worker()
    api = HttpApi(worker)
    async with serving(api) as address:
        idle = await asyncio.open_connection(*address)
        idle[1].write(AFTER.replace(b"Connection: close\r\n", b""))
        assert await idle[0].readuntil(b"\r\n\r\n")
        worker.go_on.clear()
        running = asyncio.create_task(told(address, post()))
        await worker.reached.wait()
        asyncio.get_running_loop().call_later(0.3, worker.go_on.set)
    (answer,) = await running
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    idle[1].close()


async def test_a_drain_ends_with_its_time() -> None:
    """What is not answered by then is cut off, and computed no more."""
    worker = Worker()
    worker.go_on.clear()
    async with serving(HttpApi(worker)) as address:
        running = asyncio.create_task(told(address, post()))
        await worker.reached.wait()
    assert [answer.status for answer in await running] in ([], [500])
    assert worker.cancelled == 1

"""The port of the HTTP API: callers who take for ever, in either direction."""

import asyncio
import json
import socket
from contextlib import suppress

import pytest
from asgi import HttpApi, Worker
from wire import serving

from frontend_service.api.http import connection, server
from support.references import eventually

HEAD = b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: "


def request(content: object) -> bytes:
    body = json.dumps(content).encode()
    return HEAD + str(len(body)).encode() + b"\r\n\r\n" + body


ANSWERED = request({"input": "a"})
REFUSED = HEAD.replace(b"/v1/", b"/none/") + b"99999\r\n\r\n"


@pytest.mark.parametrize(
    ("first", "then"),
    [(b"", b""), (b"", HEAD), (ANSWERED, HEAD), (ANSWERED, b"\r\n"), (REFUSED, b"x")],
    ids=["nothing", "half", "half of the next one", "an empty line", "the body of what was refused"],
)
async def test_the_head_of_a_request_must_come_soon(monkeypatch: pytest.MonkeyPatch, first: bytes, then: bytes) -> None:
    """Of the first one and of later ones; what was answered before is answered."""
    monkeypatch.setattr(connection, "REST_SECONDS", 0.3)
    if not first:
        monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)
    async with serving(HttpApi(Worker())) as address:
        reader, writer = await asyncio.open_connection(*address)
        if first:
            await answered(reader, writer, first)
            monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)
        writer.write(then)
        assert await is_closed(reader)
        writer.close()


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: bytes = ANSWERED) -> None:
    """Asks, and reads the whole response: from then on the connection waits for another head."""
    writer.write(asked)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert head.startswith(b"http/1.1 ")
    await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """By the other side."""
    with suppress(ConnectionError):
        await reader.read()
    return reader.at_eof() or reader.exception() is not None


async def test_a_request_that_waits_behind_another_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a head is there while the answer is computed."""
    worker = Worker()
    async with serving(HttpApi(worker)) as address:
        reader, writer = await asyncio.open_connection(*address)
        await answered(reader, writer)
        monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)
        worker.go_on.clear()
        writer.write(ANSWERED + HEAD)
        await asyncio.sleep(0.7)
        worker.go_on.set()
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()


TRAILERS = HEAD.replace(b"content-length: ", b"transfer-encoding: chunked\r\n\r\n0\r\na: ")


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [(b"GET /health HTTP/1.1\r\nhost: ", b"x" * 1000), (TRAILERS, b"x" * 1000 + b"\r\nb: ")],
    ids=["a head", "trailers"],
)
async def test_what_comes_beside_bodies_is_bounded(begins: bytes, goes_on: bytes) -> None:
    """And told."""
    async with serving(HttpApi(Worker())) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(begins)
        for _ in range(1024 * 1024 // len(goes_on)):  # of one read only the end may be known
            writer.write(goes_on)
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
        writer.close()


async def test_connections_are_bounded() -> None:
    async with serving(HttpApi(Worker()), connections=2) as address:
        three = [await asyncio.open_connection(*address) for _ in range(3)]
        assert await is_closed(three[2][0])
        three[0][1].write(ANSWERED)
        assert (await three[0][0].readline()).startswith(b"HTTP/1.1 200")
        for _, writer in three:
            writer.close()


async def test_a_body_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is that of the call."""
    async with serving(HttpApi(Worker())) as address:
        reader, writer = await asyncio.open_connection(*address)
        await answered(reader, writer)
        monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)
        whole = request({"input": "a"})
        writer.write(whole[:-3])
        await asyncio.sleep(0.6)
        writer.write(whole[-3:])
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_caller_that_reads_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reply counts as unread as long as it is there, and then no more."""
    monkeypatch.setattr(server, "UNREAD_MILLISECONDS", 500)
    bind = server._bound

    def small(host: str, port: int) -> socket.socket:
        bound = bind(host, port)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return bound

    monkeypatch.setattr(server, "_bound", small)
    api = HttpApi(Worker())
    async with serving(api) as address:
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect(address)
            lazy.sendall(request({"input": ["a"] * 4000}))
            await eventually(lambda: api.calls.admission.size > 0)
            await eventually(lambda: api.calls.admission.size == 0 and api.calls.admission.requests == 0)


async def test_a_reply_does_not_wait_for_an_acknowledgement() -> None:
    """TCP_NODELAY on every connection: head and body of a reply are two writes."""
    with server._bound("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

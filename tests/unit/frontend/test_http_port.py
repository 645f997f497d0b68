"""The port of the HTTP API: its bounds on heads, and callers that read nothing."""

import asyncio
import json
import socket
from contextlib import suppress

import pytest
from asgi import HttpApi, Worker
from wire import refuses_strangers, responses, serving, statuses

from frontend_service.api.http import port
from support.references import eventually

HEAD = b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: "


def request(content: object) -> bytes:
    body = json.dumps(content).encode()
    return HEAD + str(len(body)).encode() + b"\r\n\r\n" + body


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """By the other side."""
    with suppress(ConnectionError):
        await reader.read()
    return reader.at_eof() or reader.exception() is not None


TRAILERS = HEAD.replace(b"content-length: ", b"transfer-encoding: chunked\r\n\r\n0\r\na: ")


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [(b"GET /health HTTP/1.1\r\nhost: ", b"x" * 1000), (TRAILERS, b"x" * 1000 + b"\r\nb: ")],
    ids=["a head", "trailers"],
)
async def test_what_comes_beside_bodies_is_bounded(begins: bytes, goes_on: bytes) -> None:
    async with serving(HttpApi(Worker())) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(begins)
        for _ in range(1024 * 1024 // len(goes_on)):
            writer.write(goes_on)
        assert await is_closed(reader)
        writer.close()


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize(("size", "status"), [(60_000, b"404"), (70_000, b"400")])
async def test_a_head_is_too_large_however_it_is_cut(pieces: int, size: int, status: bytes) -> None:
    """The bytes of a head count, not those of a read."""
    head = b"GET /none HTTP/1.1\r\nhost: a\r\nx: " + b"x" * size + b"\r\n\r\n"
    step = -(-len(head) // pieces)
    async with serving(HttpApi(Worker())) as address:
        reader, writer = await asyncio.open_connection(*address)
        for start in range(0, len(head), step):
            writer.write(head[start : start + step])
            await asyncio.sleep(0.01)
        assert (await reader.readline()).split()[1] == status
        writer.close()


@pytest.mark.parametrize(("lines", "status"), [(99, b"404"), (101, b"400")])
async def test_a_request_has_a_bounded_number_of_header_lines(lines: int, status: bytes) -> None:
    """Each takes a hundred bytes more in memory than on the wire, and may be three bytes long there."""
    async with serving(HttpApi(Worker())) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /none HTTP/1.1\r\nhost: a\r\n" + b"a:\r\n" * (lines - 1) + b"\r\n")
        assert (await reader.readline()).split()[1] == status
        writer.close()


async def test_a_caller_that_reads_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reply counts as unread as long as it is there, and then no more."""
    monkeypatch.setattr(port, "UNREAD_MILLISECONDS", 500)
    bind = port._bound

    def small(host: str, port: int) -> socket.socket:
        bound = bind(host, port)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return bound

    monkeypatch.setattr(port, "_bound", small)
    api = HttpApi(Worker())
    async with serving(api) as address:
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect(address)
            lazy.sendall(request({"input": ["a"] * 4000}))
            await eventually(lambda: api.calls.admission.size > 0)
            await eventually(lambda: api.calls.admission.size == 0 and api.calls.admission.requests == 0)


@pytest.mark.parametrize("together", [True, False])
async def test_who_leaves_is_computed_for_no_more(together: bool) -> None:
    """Though another request waits behind the one that is computed, from the same packet or one of its own."""
    worker = Worker()
    worker.go_on.clear()
    async with serving(HttpApi(worker)) as address:
        _, writer = await asyncio.open_connection(*address)
        writer.write(request({"input": "a"}) * (1 + together))
        await worker.reached.wait()
        if together:
            writer.close()
        else:
            writer.write(request({"input": "b"}))
            await asyncio.sleep(0.1)
            writer.transport.abort()
        await eventually(lambda: worker.cancelled == 1)


async def test_few_requests_of_a_connection_wait() -> None:
    """Those that came first are answered, and the connection ends behind them."""
    worker = Worker()
    worker.go_on.clear()
    async with serving(HttpApi(worker)) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(request({"input": "a"}) + b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n" * 10_000)
        await worker.reached.wait()
        await asyncio.sleep(0.1)
        worker.go_on.set()
        assert statuses(responses(await reader.read())) == [200] * (1 + port.PIPELINED)
        writer.close()


CHUNKS = HEAD.replace(b"content-length: ", b"transfer-encoding: chunked\r\n\r\n") + b"ZZ\r\n"


@pytest.mark.parametrize("broken", [CHUNKS, b"nonsense\r\n\r\n"])
async def test_a_broken_request_takes_no_answer_from_the_one_before_it(broken: bytes) -> None:
    """Behind a request that is computed the connection ends without a status of its own, now or a moment later."""
    for pause in (0.0, 0.05):
        worker = Worker()
        worker.go_on.clear()
        async with serving(HttpApi(worker)) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(request({"input": "a"}) + (b"" if pause else broken))
            await worker.reached.wait()
            if pause:
                writer.write(broken)
                await asyncio.sleep(pause)
            worker.go_on.set()
            assert statuses(responses(await reader.read())) == [200]
            writer.close()


async def test_a_connection_that_was_refused_ends_when_it_idles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the body comes after the refusal, or drop by drop."""
    monkeypatch.setattr(port, "IDLE_SECONDS", 0.3)
    for length, drips in ((9, False), (10**9, True)):
        async with serving(HttpApi(Worker(), calls=refuses_strangers())) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(HEAD + b"%d\r\n\r\n" % length)
            assert (await reader.readline()).split()[1] == b"401"
            ending = asyncio.create_task(is_closed(reader))
            writer.write(b"x" * 9)
            with suppress(ConnectionError):
                while drips and not ending.done():
                    await asyncio.sleep(0.05)
                    writer.write(b"x")
            assert await asyncio.wait_for(ending, 10)
            writer.close()


async def test_a_reply_does_not_wait_for_an_acknowledgement() -> None:
    """TCP_NODELAY on every connection: head and body of a reply are two writes."""
    with port._bound("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

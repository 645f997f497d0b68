"""One connection to the port of the HTTP API, driven without a network: what it holds, and how it ends."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from frontend_service.api.http import connection
from frontend_service.api.http.connection import Connection
from frontend_service.api.http.open_connections import OpenConnections


class Wire(asyncio.Transport):
    """A transport in memory; without `has_half`, none that could be closed on one side alone, as over TLS."""

    def __init__(self, *, has_half: bool = False) -> None:
        super().__init__()
        self.written, self.closes = b"", 0
        self._has_half, self.is_half_closed = has_half, False
        self.closed, self.aborted = asyncio.Event(), asyncio.Event()

    def write(self, data: bytes) -> None:  # type: ignore[override]
        assert not self.is_half_closed, "asyncio ends the connection then, and logs an error"
        self.written += data

    def can_write_eof(self) -> bool:
        return self._has_half

    def write_eof(self) -> None:
        self.is_half_closed = True

    def is_closing(self) -> bool:
        return self.closed.is_set() or self.aborted.is_set()

    def close(self) -> None:
        self.closes += 1
        self.closed.set()

    def abort(self) -> None:
        self.aborted.set()

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def answers(_: Any, receive: Any, send: Any) -> None:
    """Reads the whole body, and tells its length."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message["body"]), message["more_body"]
    body = str(size).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def answers_unread(_: Any, __: Any, send: Any) -> None:
    """Answers without a look at the body."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def fails(_: Any, __: Any, ___: Any) -> None:
    raise LookupError("a bug")


async def computes(_: Any, receive: Any, __: Any) -> None:
    """Goes on until the caller has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def connected(present: OpenConnections, app: Any = answers, *, has_half: bool = False) -> tuple[Connection, Wire]:
    made, wire = Connection(app, present), Wire(has_half=has_half)
    made.connection_made(wire)
    return made, wire


async def answered(present: OpenConnections) -> None:
    """Returns when nothing is being answered."""
    while present.tasks:
        await asyncio.wait(present.tasks)


async def test_a_request_has_a_bounded_number_of_header_lines() -> None:
    """Each takes a hundred bytes more in memory than on the wire, and may be three bytes long there."""
    for lines, status in ((99, b"200"), (101, b"431")):
        present = OpenConnections()
        made, wire = connected(present)
        made.data_received(b"GET / HTTP/1.1\r\nhost: a\r\n" + b"a:\r\n" * (lines - 1) + b"\r\n")
        await answered(present)
        assert wire.written.startswith(b"HTTP/1.1 " + status), lines
        made.connection_lost(None)


async def test_a_body_of_tiny_chunks_is_held_as_its_bytes() -> None:
    """One object for each chunk would take forty times as much."""
    present = OpenConnections()
    made, wire = connected(present)
    made.data_received(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(100):
        made.data_received(b"1\r\nx\r\n" * 1000)
    held = made._cycles[0].held
    assert held == 100_000
    assert isinstance(made._cycles[0]._part, bytearray)
    made.data_received(b"0\r\n\r\n")
    await answered(present)
    assert wire.written.endswith(b"\r\n\r\n100000")
    made.connection_lost(None)


async def test_a_connection_that_comes_in_a_drain_ends() -> None:
    """It was accepted just before the port was closed: nobody else would end it."""
    present = OpenConnections()
    await present.end(0)
    made, wire = connected(present)
    assert wire.closed.is_set()
    made.connection_lost(None)
    assert not present.connections


async def test_who_never_takes_the_last_response_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transport that closes waits for what it has written; for that, too, there is a bound."""
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(connection, "REST_SECONDS", 0.01)
    present = OpenConnections()
    made, wire = connected(present)
    made.data_received(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    await answered(present)
    await wire.closed.wait()
    await wire.aborted.wait()
    made.connection_lost(None)


ENDS = b"GET / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\nx"
"""A request whose response ends the connection, since nobody asks for its body."""


@pytest.mark.parametrize("behind", [b"5\r\nab", b"5\r\nabcdeno chunk\r\n"])
async def test_what_waits_behind_the_last_response_is_dropped(behind: bytes) -> None:
    """A request whose head has come, and whose body is broken then or later, is no fault of ours: nothing is raised."""
    present = OpenConnections()
    made, wire = connected(present, answers_unread)
    made.data_received(ENDS + b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + behind)
    await answered(present)
    made.data_received(b"no chunk\r\n")
    assert wire.written.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in wire.written
    made.connection_lost(None)


async def test_no_response_follows_the_last_one() -> None:
    """Not even to what is no request."""
    present = OpenConnections()
    made, wire = connected(present, answers_unread)
    made.data_received(ENDS + b"nonsense\r\n\r\n")
    await answered(present)
    assert (wire.written.count(b"HTTP/1.1 "), wire.written[9:12]) == (1, b"200")
    made.connection_lost(None)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (ENDS.removesuffix(b"x"), b"xnonsense\r\n\r\n"),
        (b"GET / HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\n", b"xnonsense\r\n\r\n"),
        (b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\nnonsense\r\n\r\n", b"nonsense"),
    ],
)
async def test_nothing_is_written_behind_the_end(first: bytes, then: bytes) -> None:
    """The rest of a request that has its response comes in one read with what is none."""
    present = OpenConnections()
    made, wire = connected(present, answers_unread, has_half=True)
    made.data_received(first)
    await answered(present)
    made.data_received(then)
    assert (wire.written.count(b"HTTP/1.1 "), wire.is_half_closed) == (1, True)
    made.connection_lost(None)


@pytest.mark.parametrize("pieces", [1, 2, 7])
@pytest.mark.parametrize(("size", "status"), [(60_000, b"200"), (70_000, b"431")])
async def test_a_head_is_too_large_however_it_is_cut(pieces: int, size: int, status: bytes) -> None:
    """The bytes of a head count, not those of a read."""
    present = OpenConnections()
    made, wire = connected(present)
    head = b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"x" * size + b"\r\n\r\n"
    step = -(-len(head) // pieces)
    for start in range(0, len(head), step):
        made.data_received(head[start : start + step])
    await answered(present)
    assert wire.written[9:12] == status
    made.connection_lost(None)


async def test_a_bug_is_answered_though_nothing_leaves() -> None:
    """Its request is not held until the caller reads."""
    present = OpenConnections()
    made, wire = connected(present, fails)
    made.pause_writing()
    made.data_received(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    await answered(present)
    assert wire.written.startswith(b"HTTP/1.1 500 ")
    made.connection_lost(None)


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_connection_that_is_lost_leaves_no_garbage(is_done: bool) -> None:
    """Whether its request was answered or not: else each would wait for a collection, which stops every request."""
    present = OpenConnections()
    gc.disable()
    try:
        made, _ = connected(present, answers if is_done else computes)
        made.data_received(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        if is_done:
            await answered(present)
        made.connection_lost(None)
        await answered(present)
        await asyncio.sleep(0)
        remains = weakref.ref(made)
        del made
        assert remains() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("has_half", [True, False])
async def test_a_drain_does_not_wait_for_callers_to_close(has_half: bool) -> None:
    """A connection ends with the last response that it has then, whenever its caller closes the other side."""
    present = OpenConnections()
    made, wire = connected(present, has_half=has_half)
    made.data_received(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\n")
    ending = asyncio.create_task(present.end(600))
    await asyncio.sleep(0)
    made.data_received(b"x")
    await wire.closed.wait()
    assert wire.written.endswith(b"\r\n\r\n1")
    assert b"connection: close" in wire.written
    made.connection_lost(None)
    await ending


async def test_a_connection_is_closed_once() -> None:
    """Though a drain comes while it closes: a second time would keep asyncio's TLS from aborting it."""
    present = OpenConnections()
    made, wire = connected(present)
    made.data_received(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    await answered(present)
    await present.end(0)
    assert (wire.closes, wire.aborted.is_set()) == (1, True)
    made.connection_lost(None)


async def test_who_leaves_is_computed_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, though what was written for it has not left; and for that there is a bound."""
    monkeypatch.setattr(connection, "REST_SECONDS", 0.01)
    present = OpenConnections()
    made, wire = connected(present, computes)
    made.data_received(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    await asyncio.sleep(0)
    made.pause_writing()
    made.eof_received()
    wire.close()  # as the loop does then
    await answered(present)
    await wire.aborted.wait()
    assert wire.written == b""
    made.connection_lost(None)

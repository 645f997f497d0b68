"""One connection to the port of the door http, driven without a network: what it holds, and how it ends."""

import asyncio
from typing import Any

import pytest

from frontend_service.doors.http import connection
from frontend_service.doors.http.connection import Connection
from frontend_service.doors.http.present import Present


class Wire(asyncio.Transport):
    """A transport in memory, with no half that could be closed alone, as TLS has it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed, self.aborted = asyncio.Event(), asyncio.Event()

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.written += data

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self.closed.is_set() or self.aborted.is_set()

    def close(self) -> None:
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


def connected(present: Present) -> tuple[Connection, Wire]:
    made, wire = Connection(answers, present), Wire()
    made.connection_made(wire)
    return made, wire


async def answered(present: Present) -> None:
    """Returns when nothing is being answered."""
    while present.tasks:
        await asyncio.wait(present.tasks)


async def test_a_request_has_a_bounded_number_of_header_lines() -> None:
    """Each takes a hundred bytes more in memory than on the wire, and may be three bytes long there."""
    for lines, status in ((99, b"200"), (101, b"431")):
        present = Present()
        made, wire = connected(present)
        made.data_received(b"GET / HTTP/1.1\r\nhost: a\r\n" + b"a:\r\n" * (lines - 1) + b"\r\n")
        await answered(present)
        assert wire.written.startswith(b"HTTP/1.1 " + status), lines
        made.connection_lost(None)


async def test_a_body_of_tiny_chunks_is_held_as_its_bytes() -> None:
    """One object for each chunk would take forty times as much."""
    present = Present()
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
    present = Present()
    await present.end(0)
    made, wire = connected(present)
    assert wire.closed.is_set()
    made.connection_lost(None)
    assert not present.connections


async def test_who_never_takes_the_last_response_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transport that closes waits for what it has written; for that, too, there is a bound."""
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(connection, "REST_SECONDS", 0.01)
    present = Present()
    made, wire = connected(present)
    made.data_received(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    await answered(present)
    async with asyncio.timeout(20):
        await wire.closed.wait()
        await wire.aborted.wait()
    made.connection_lost(None)

"""One connection: each request gets its one response, in order, and nobody holds it for longer than it may."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from frontend_service.doors.http.app import ABORT
from frontend_service.doors.http.cycle import JOINED, Cycle, refusal
from frontend_service.doors.http.parser import Head, NoRequest, Parser

CONNECTIONS = 4096
"""At once, as over gRPC."""
HEAD_SECONDS, HEAD_BYTES = 10.0, 64 * 1024
"""For the head of a request to arrive, and what may come beside bodies in a row."""
IDLE_SECONDS = 75.0
"""Between two requests of a connection: more than what balancers in front keep theirs."""
REST_SECONDS, REST_BYTES = 30.0, 256 * 1024 * 1024
"""For what is still sent after its response: it is read and dropped, since a connection that is closed on it loses the
response on its way. More than a body may have, since larger ones are refused."""
PIPELINED = 100
"""Requests that may wait behind one that is being answered; the connection ends with the last of them."""

App = Callable[
    [Mapping[str, Any], Callable[[], Awaitable[Mapping[str, Any]]], Callable[[Mapping[str, Any]], Awaitable[None]]],
    Awaitable[None],
]

log = structlog.get_logger("server")


@dataclass(frozen=True, slots=True, eq=False)
class Present:
    """Who is connected to a port, and what is being answered. `left`: set when one goes."""

    connections: "set[Connection]" = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    left: asyncio.Event = field(default_factory=asyncio.Event)


class Connection(asyncio.Protocol):
    """From its first byte to its last. There may be so many of them, and each is bounded in what it leaves open."""

    _transport: asyncio.Transport

    def __init__(self, app: App, present: Present) -> None:
        self._app, self._present = app, present
        self._loop = asyncio.get_running_loop()
        self._writable = asyncio.Event()
        self._writable.set()
        self._parser = Parser(self)
        self._cycles: deque[Cycle] = deque()  # those that are to be answered
        self._reading: Cycle | None = None  # whose body comes
        self._refusal = b""  # the last response, to what was no request
        self._is_fresh = True  # nothing has been answered
        self._is_last = False  # no request is taken any more
        self._is_closing = self._is_paused = False
        self._dropped = 0
        self._owed: tuple[str, float] | None = None
        self._timer: asyncio.TimerHandle | None = None

    # What the loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._present.connections.add(self)
        if len(self._present.connections) > CONNECTIONS:
            transport.abort()
        self._settle()

    def data_received(self, data: bytes) -> None:
        if self._is_last and self._reading is None:
            self._drop(len(data))
            return
        try:
            self._parser.feed(data)
            if self._parser.beside > HEAD_BYTES:
                raise NoRequest(431, f"beside its body a request may have {HEAD_BYTES} bytes")
        except NoRequest as error:
            self._refuse(error)
        self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._parser.close()
        if self._timer is not None:
            self._timer.cancel()
        for cycle in self._cycles:
            cycle.leave()
        self._writable.set()
        self._present.connections.discard(self)
        self._present.left.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # What the parser tells.

    def on_head(self, head: Head) -> None:
        """It waits for those before it."""
        if self._is_last:
            return
        keep_alive = head.keep_alive and head.length <= REST_BYTES and len(self._cycles) < PIPELINED
        invites = head.version == "1.1" and any(name == b"expect" for name, _ in head.headers)
        self._is_last = not keep_alive
        self._reading = Cycle(self._scope(head), self, keep_alive=keep_alive, invites=invites)
        self._cycles.append(self._reading)
        self._dropped = 0

    def on_part(self, part: bytes) -> None:
        """Nobody wants what comes after its response."""
        if self._reading is None or self._reading.is_over:
            self._drop(len(part))
        else:
            self._reading.arrive(part)

    def on_end(self, keep_alive: bool) -> None:
        """Trailers, too, may say that nothing follows."""
        cycle, self._reading = self._reading, None
        if cycle is not None:
            self._is_last = self._is_last or not keep_alive
            cycle.keep_alive = cycle.keep_alive and keep_alive
            cycle.end()

    def _scope(self, head: Head) -> dict[str, Any]:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": head.version,
            "method": head.method,
            "scheme": "http" if self._transport.get_extra_info("sslcontext") is None else "https",
            "path": head.path,
            "query_string": head.query,
            "headers": head.headers,
            "client": (self._transport.get_extra_info("peername") or ())[:2] or None,
            "extensions": {ABORT: self._transport.abort},
        }

    # What a cycle tells.

    async def writable(self) -> None:
        """Returns when most of what was written has left, or the connection is lost."""
        await self._writable.wait()

    def write(self, data: bytes) -> None:
        """It leaves when it can."""
        self._transport.write(data)

    def taken(self) -> None:
        """There is room for more of a body."""
        self._settle()

    def answered(self, cycle: Cycle) -> None:
        """The next one's turn, or the end."""
        self._is_fresh = False
        self._cycles.popleft()
        if not cycle.keep_alive:
            self._is_last = True
            for behind in self._cycles:
                behind.leave()
            self._cycles.clear()
        self._go_on()

    # What the server tells.

    def finish(self) -> None:
        """Answers what is there, and ends."""
        self._is_last = True
        if self._cycles:
            self._cycles[-1].keep_alive = False
        elif self._reading is None:
            self._transport.close()
        self._go_on()

    def abort(self) -> None:
        """Ends at once."""
        self._transport.abort()

    # One after the other.

    def _go_on(self) -> None:
        """With the next request, or to the end."""
        if self._cycles:
            cycle = self._cycles[0]
            if not cycle.is_running:
                cycle.is_running = True
                task = self._loop.create_task(self._run(cycle))
                self._present.tasks.add(task)
                task.add_done_callback(self._present.tasks.discard)
        elif self._is_last:
            self._close()
        self._settle()

    async def _run(self, cycle: Cycle) -> None:
        try:
            await self._app(cycle.scope, cycle.receive, cycle.send)
        except Exception as raised:
            log.error("bug", method=cycle.scope["method"], path=cycle.scope["path"], exc_info=raised)
            if not cycle.has_begun:
                await cycle.send({"type": "http.response.start", "status": 500, "headers": [(b"content-length", b"0")]})
                await cycle.send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if not cycle.is_over:
                self._transport.abort()

    def _refuse(self, error: NoRequest) -> None:
        """In its turn, instead of the request whose body it was; where that has its response, the end is all."""
        cycle, self._reading, self._is_last = self._reading, None, True
        if cycle is not None and cycle.has_begun:
            cycle.keep_alive = False
            return
        if cycle is not None:
            cycle.leave()
            self._cycles.remove(cycle)
        self._refusal = refusal(error.status, error.message)

    def _close(self) -> None:
        """Says that nothing more is written, and reads on until the caller has heard it, within bounds (RFC 9112, 9.6).
        TLS has no such half: there the rest of the request is all that is read.
        """
        if self._refusal:
            self._transport.write(self._refusal)
            self._refusal = b""
        if not self._transport.can_write_eof():
            if self._reading is None:
                self._transport.close()
        elif not self._is_closing:
            self._transport.write_eof()
        self._is_closing = True

    def _drop(self, size: int) -> None:
        self._dropped += size
        if self._dropped > REST_BYTES:
            self._transport.abort()

    # What is waited for.

    def _settle(self) -> None:
        """Whether more is read now, and until when the caller must have sent what it owes."""
        pauses = len(self._cycles) > 1 or (self._reading is not None and self._reading.held > JOINED)
        if pauses != self._is_paused and not self._transport.is_closing():
            self._is_paused = pauses
            (self._transport.pause_reading if pauses else self._transport.resume_reading)()
        owed = self._owes()
        if owed != self._owed:
            if self._timer is not None:
                self._timer.cancel()
            self._owed = owed
            self._timer = None if owed is None else self._loop.call_later(owed[1], self._too_late)

    def _owes(self) -> tuple[str, float] | None:
        """What, and the seconds that it may take; None while the caller waits for us."""
        if self._cycles:
            return None
        if self._is_closing or self._reading is not None:
            return "the rest", REST_SECONDS
        if self._is_fresh or self._parser.is_in_head:
            return "a head", HEAD_SECONDS
        return "another request", IDLE_SECONDS

    def _too_late(self) -> None:
        if self._is_closing or (self._owed is not None and self._owed[0] == "another request"):
            self._transport.close()  # what has not left yet still does
        else:
            self._transport.abort()

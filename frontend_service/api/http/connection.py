"""One connection: each request gets its one response, in order, and nobody holds it for longer than it may."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any

import structlog

from frontend_service.api.http.app import ABORT
from frontend_service.api.http.cycle import Cycle, refusal
from frontend_service.api.http.open_connections import OpenConnections
from frontend_service.api.http.parser import InvalidRequest, Parser, RequestHead

CONNECTIONS = 4096
"""Callers at once, as over gRPC."""
HEAD_SECONDS = 10.0
"""Time for the head of a request to arrive."""
IDLE_SECONDS = 75.0
"""Time between two requests of a connection: more than what balancers in front keep theirs."""
REST_SECONDS, REST_BYTES = 30.0, 256 * 1024 * 1024
"""Bounds of what is still sent after its response: it is read and dropped, since a connection that is closed on it
loses the response on its way. More than a body may have, since larger ones are refused."""
AHEAD = 64 * 1024
"""Bytes of a body that are read before the app takes them."""
PIPELINED = 100
"""Requests that may wait behind one that is being answered; the connection ends with the last of them."""

App = Callable[
    [Mapping[str, Any], Callable[[], Awaitable[Mapping[str, Any]]], Callable[[Mapping[str, Any]], Awaitable[None]]],
    Awaitable[None],
]

log = structlog.get_logger("server")


class Owed(Enum):
    """What a caller is to send, or to take, while nothing of its own is being answered."""

    HEAD = "a head that it has begun, or its first one"
    REQUEST = "another request, if it has one"
    REST = "what belongs to no request that is answered, and its last response"


class Connection(asyncio.Protocol):
    """A caller, from its first byte to its last. There may be many, and each is bounded in what it leaves open."""

    _transport: asyncio.Transport

    def __init__(self, app: App, present: OpenConnections) -> None:
        self._app, self._present = app, present
        self._loop = asyncio.get_running_loop()
        self._writable = asyncio.Event()
        self._writable.set()
        self._parser = Parser(self)
        self._cycles: deque[Cycle] = deque()  # those that are to be answered
        self._reading: Cycle | None = None  # whose body comes
        self._refusal = b""  # the last response, to what was no request
        self._is_last = False  # no request is taken any more
        self._is_closing = False  # nothing is written any more
        self._dropped = 0  # bytes that came after their response
        self._owed: Owed | None = None
        self._timer: asyncio.TimerHandle | None = None

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._present.connections.add(self)
        self._settle()
        if len(self._present.connections) > CONNECTIONS:
            self.abort()
        elif self._present.is_ending:
            self.finish()

    def data_received(self, data: bytes) -> None:
        if self._is_last and self._reading is None:
            self._drop(len(data))
            return
        try:
            self._parser.feed(data)
        except InvalidRequest as error:
            self._refuse(error)
        self._go_on()

    def eof_received(self) -> None:
        """Whoever sends nothing more has gone: most callers that give up look no different. What has been written still
        leaves.
        """
        self._give_up()
        self._is_closing = True
        self._settle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_up()
        self._reading = None
        self._parser.close()
        if self._timer is not None:
            self._timer.cancel()
        self._writable.set()
        self._present.leave(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # Called by the parser.

    def on_head(self, head: RequestHead) -> None:
        """Puts the request behind those that are to be answered."""
        if self._is_last:
            return
        keep_alive = head.keep_alive and head.length <= REST_BYTES and len(self._cycles) < PIPELINED
        invites = head.version == "1.1" and any(name == b"expect" for name, _ in head.headers)
        self._is_last = not keep_alive
        self._reading = Cycle(self._scope(head), self, keep_alive=keep_alive, invites=invites)
        self._cycles.append(self._reading)
        self._dropped = 0

    def on_part(self, part: bytes) -> None:
        """Gives the bytes to their request; nobody wants those that come after its response."""
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

    def _scope(self, head: RequestHead) -> dict[str, Any]:
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

    # Called by a cycle.

    async def writable(self) -> None:
        """Returns when most of what was written has left, or the connection is lost."""
        await self._writable.wait()

    def write(self, data: bytes) -> None:
        """The bytes leave when they can."""
        self._transport.write(data)

    def taken(self) -> None:
        """There is room for more of a body."""
        self._settle()

    def answered(self, cycle: Cycle) -> None:
        """Begins the next response, or ends."""
        self._cycles.popleft()
        if not cycle.keep_alive:
            self._give_up()
        self._go_on()

    # Called by the server.

    def finish(self) -> None:
        """Answers the requests that are there, and ends."""
        self._is_last = True
        if self._cycles:
            self._cycles[-1].keep_alive = False
        self._go_on()

    def abort(self) -> None:
        """Ends at once."""
        self._transport.abort()

    # Requests in their order.

    def _go_on(self) -> None:
        """Begins to answer the first request that waits, or closes behind the last one."""
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
            cycle.fail()
        finally:
            if not cycle.is_over:
                self._transport.abort()

    def _refuse(self, error: InvalidRequest) -> None:
        """Refuses in its turn, instead of the request whose body it was; where that has its response, closes.

        Behind the last request nothing is refused: no response may follow the one that ends the connection.
        """
        cycle, self._reading = self._reading, None
        is_behind, self._is_last = cycle is None and self._is_last, True
        if is_behind:
            return
        if cycle is not None and cycle.has_begun:
            cycle.keep_alive = False
            return
        if cycle is not None:
            cycle.leave()
            self._cycles.remove(cycle)
        self._refusal = refusal(error.status, error.message)

    def _give_up(self) -> None:
        """Nobody is answered any more who has not been."""
        self._is_last, self._refusal = True, b""
        if self._reading in self._cycles:
            self._reading = None
        for cycle in self._cycles:
            cycle.leave()
        self._cycles.clear()

    def _close(self) -> None:
        """Says that nothing more is written, and reads on until the caller has heard it, within bounds.

        Specification: RFC 9112, 9.6. TLS has no such half, and a server that ends waits for nobody: there the rest of
        the request is all that is read.
        """
        if self._transport.is_closing():
            return  # over TLS, asyncio forgets a transport that is closed twice: nothing could abort it any more
        if self._refusal:
            self._transport.write(self._refusal)
            self._refusal = b""
        is_half = self._transport.can_write_eof()
        if self._reading is None and (self._present.is_ending or not is_half):
            self._transport.close()
        elif is_half:
            self._transport.write_eof()
        self._is_closing = True

    def _drop(self, size: int) -> None:
        self._dropped += size
        if self._dropped > REST_BYTES:
            self._transport.abort()

    # What is waited for.

    def _settle(self) -> None:
        """Reads on or pauses, and sets the time until which the caller must have done what it owes."""
        is_ahead = len(self._cycles) > 1 or (self._reading is not None and self._reading.held > AHEAD)
        if not self._transport.is_closing():
            (self._transport.pause_reading if is_ahead else self._transport.resume_reading)()
        owed = self._owes()
        if owed is not self._owed:
            self._owed = owed
            self._wait()

    def _owes(self) -> Owed | None:
        """None while the caller waits for us."""
        if self._cycles:
            return None
        if self._is_closing or self._reading is not None:
            return Owed.REST
        return Owed.HEAD if self._parser.awaits_head else Owed.REQUEST

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        seconds = {None: None, Owed.HEAD: HEAD_SECONDS, Owed.REQUEST: IDLE_SECONDS, Owed.REST: REST_SECONDS}[self._owed]
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._too_late)

    def _too_late(self) -> None:
        """Cuts the caller off; one that owes no more than to take its last response has half a minute for that."""
        is_done = self._owed is Owed.REQUEST or (self._is_closing and not self._transport.is_closing())
        if not is_done:
            self._transport.abort()
            return
        self._is_last = self._is_closing = True
        self._transport.close()
        self._owed = Owed.REST
        self._wait()

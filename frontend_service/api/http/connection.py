"""One connection: every request gets its one response, in order, and every wait for the caller has a limit."""

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

HEAD_SECONDS = 10.0
"""Longest time for the head of a request to arrive."""
IDLE_SECONDS = 75.0
"""Longest time between two requests of a connection: longer than load balancers keep idle connections."""
REST_SECONDS, REST_BYTES = 30.0, 256 * 1024 * 1024
"""Limits for bytes that a caller still sends after the response. They are read and dropped, since closing the
connection on them would lose the response on its way. A body may have fewer bytes, since larger bodies are refused."""
AHEAD = 64 * 1024
"""Most bytes of a body that are read before the application takes them."""
PIPELINED = 100
"""Most requests that wait behind the one that is answered; the connection ends with the last of them."""

App = Callable[
    [Mapping[str, Any], Callable[[], Awaitable[Mapping[str, Any]]], Callable[[Mapping[str, Any]], Awaitable[None]]],
    Awaitable[None],
]

log = structlog.get_logger("server")


class Owed(Enum):
    """The step that a connection expects of its caller while it answers no request."""

    HEAD = "the rest of a head, or its first head"
    REQUEST = "another request, if it has one"
    REST = "the rest of a request that is not answered, and reading the last response"


class Connection(asyncio.Protocol):
    """The connection of one caller, from its first byte to its last, as an asyncio protocol."""

    _transport: asyncio.Transport

    def __init__(self, app: App, connections: OpenConnections) -> None:
        self._app, self._connections = app, connections
        self._loop = asyncio.get_running_loop()
        self._writable = asyncio.Event()
        self._writable.set()
        self._parser = Parser(self)
        self._cycles: deque[Cycle] = deque()  # requests that are to be answered, the first one first
        self._arriving: Cycle | None = None  # the request whose body arrives
        self._refusal = b""  # the last response, to bytes that are no request
        self._is_last = False  # the last request has come: no more are taken
        self._is_closing = False  # nothing more is written
        self._dropped = 0  # bytes that came after the response to their request
        self._owed: Owed | None = None
        self._timer: asyncio.TimerHandle | None = None

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.connections.add(self)
        self._update_waiting()
        if self._connections.is_over_full:
            self.abort()
        elif self._connections.is_ending:
            self.finish()

    def data_received(self, data: bytes) -> None:
        if self._is_last and self._arriving is None:
            self._drop(len(data))
            return
        try:
            self._parser.feed(data)
        except InvalidRequest as error:
            self._refuse(error)
        self._answer_next()

    def eof_received(self) -> None:
        """Treats a caller that sends nothing more as gone: most callers that give up look the same.

        Bytes that have been written still leave.
        """
        self._drop_requests()
        self._is_closing = True
        self._update_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_requests()
        self._arriving = None
        self._parser.close()
        if self._timer is not None:
            self._timer.cancel()
        self._writable.set()
        self._connections.remove(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # Called by the parser.

    def on_head(self, head: RequestHead) -> None:
        """Adds a request behind those that are to be answered."""
        if self._is_last:
            return
        keep_alive = head.keep_alive and head.length <= REST_BYTES and len(self._cycles) < PIPELINED
        invites = head.version == "1.1" and any(name == b"expect" for name, _ in head.headers)
        self._is_last = not keep_alive
        self._arriving = Cycle(self._scope(head), self, keep_alive=keep_alive, invites=invites)
        self._cycles.append(self._arriving)
        self._dropped = 0

    def on_part(self, part: bytes) -> None:
        """Gives bytes of a body to their request; drops those that come after its response."""
        if self._arriving is None or self._arriving.is_over:
            self._drop(len(part))
        else:
            self._arriving.arrive(part)

    def on_end(self, keep_alive: bool) -> None:
        """Ends the request that arrives. Its trailers may say that it is the last one."""
        cycle, self._arriving = self._arriving, None
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

    def write(self, data: bytes | memoryview) -> None:
        """Writes bytes, which leave when the caller reads them."""
        self._transport.write(data)

    def taken(self) -> None:
        """Notes that there is room for more of a body."""
        self._update_waiting()

    def answered(self, cycle: Cycle) -> None:
        """Notes that a response is whole: answers the next request, or ends."""
        self._cycles.popleft()
        if not cycle.keep_alive:
            self._drop_requests()
        self._answer_next()

    # Called by the server.

    def finish(self) -> None:
        """Answers the requests that have arrived, then ends."""
        self._is_last = True
        if self._cycles:
            self._cycles[-1].keep_alive = False
        self._answer_next()

    def abort(self) -> None:
        """Ends at once."""
        self._transport.abort()

    # Answering requests in their order.

    def _answer_next(self) -> None:
        """Begins to answer the first request that waits, or closes after the last one."""
        if self._cycles:
            cycle = self._cycles[0]
            if not cycle.is_running:
                cycle.is_running = True
                task = self._loop.create_task(self._run(cycle))
                self._connections.tasks.add(task)
                task.add_done_callback(self._connections.tasks.discard)
        elif self._is_last:
            self._close()
        self._update_waiting()

    async def _run(self, cycle: Cycle) -> None:
        """Runs the application for a request."""
        try:
            await self._app(cycle.scope, cycle.receive, cycle.send)
        except Exception as raised:
            log.error("bug", method=cycle.scope["method"], path=cycle.scope["path"], exc_info=raised)
            cycle.fail()
        finally:
            if not cycle.is_over:
                self._transport.abort()

    def _refuse(self, error: InvalidRequest) -> None:
        """Refuses invalid bytes, as the response to the request whose body they are in, or after those to all requests.

        Where that request has begun its response, the connection ends after it instead. After the last request nothing
        is refused: no response may follow the one that ends the connection.
        """
        cycle, self._arriving = self._arriving, None
        is_after_last, self._is_last = cycle is None and self._is_last, True
        if is_after_last:
            return
        if cycle is not None and cycle.has_begun:
            cycle.keep_alive = False
            return
        if cycle is not None:
            cycle.leave()
            self._cycles.remove(cycle)
        self._refusal = refusal(error.status, error.message)

    def _drop_requests(self) -> None:
        """Drops all requests that have no response yet."""
        self._is_last, self._refusal = True, b""
        if self._arriving in self._cycles:
            self._arriving = None
        for cycle in self._cycles:
            cycle.leave()
        self._cycles.clear()

    def _close(self) -> None:
        """Closes the writing half of the connection, and reads on within limits until the caller closes its half.

        Specification: RFC 9112, 9.6. TLS cannot be closed by halves, and a server that ends does not wait: there only
        the rest of the request is read.
        """
        if self._transport.is_closing():
            return  # over TLS, asyncio forgets a transport that is closed twice: nothing could abort it then
        if self._refusal:
            self._transport.write(self._refusal)
            self._refusal = b""
        can_half_close = self._transport.can_write_eof()
        if self._arriving is None and (self._connections.is_ending or not can_half_close):
            self._transport.close()
        elif can_half_close:
            self._transport.write_eof()
        self._is_closing = True

    def _drop(self, size: int) -> None:
        """Counts bytes that nobody wants; ends the connection where they are too many."""
        self._dropped += size
        if self._dropped > REST_BYTES:
            self._transport.abort()

    # Waiting for the caller.

    def _update_waiting(self) -> None:
        """Pauses or resumes reading, and restarts the timer where the caller owes another step."""
        is_ahead = len(self._cycles) > 1 or (self._arriving is not None and self._arriving.held > AHEAD)
        if not self._transport.is_closing():
            (self._transport.pause_reading if is_ahead else self._transport.resume_reading)()
        owed = self._owed_step()
        if owed is not self._owed:
            self._owed = owed
            self._restart_timer()

    def _owed_step(self) -> Owed | None:
        """The step that the caller owes; None while it waits for a response."""
        if self._cycles:
            return None
        if self._is_closing or self._arriving is not None:
            return Owed.REST
        return Owed.HEAD if self._parser.awaits_head else Owed.REQUEST

    def _restart_timer(self) -> None:
        """Restarts the timer for the step that the caller owes."""
        if self._timer is not None:
            self._timer.cancel()
        seconds = {None: None, Owed.HEAD: HEAD_SECONDS, Owed.REQUEST: IDLE_SECONDS, Owed.REST: REST_SECONDS}[self._owed]
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._on_timeout)

    def _on_timeout(self) -> None:
        """Aborts the connection. Where the caller owes only the reading of its last response, closes it instead, and
        leaves it half a minute for that."""
        is_done = self._owed is Owed.REQUEST or (self._is_closing and not self._transport.is_closing())
        if not is_done:
            self._transport.abort()
            return
        self._is_last = self._is_closing = True
        self._transport.close()
        self._owed = Owed.REST
        self._restart_timer()

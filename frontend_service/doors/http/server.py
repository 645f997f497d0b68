"""The port: uvicorn on the frontend's loop, with what it does not bound by itself."""

import asyncio
import logging
import math
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from frontend_service.doors.http.app import ABORT, App
from shared.fresh import Fresh
from shared.tls import Identity

CONNECTIONS = 4096
"""At once, as over gRPC."""
HEAD_SECONDS, HEAD_BYTES = 10.0, 64 * 1024
"""For the head of a request to arrive, and what may come beside bodies in a row."""
IDLE_SECONDS = 75
"""Between two requests of a connection: more than what balancers in front keep theirs."""
UNREAD_MILLISECONDS = 30_000
"""After which a connection ends whose caller takes nothing of a reply."""
BACKLOG = 2048

log = structlog.get_logger("server")


class Protocol(HttpToolsProtocol):
    """A connection that is bounded where uvicorn's is not: in what comes beside bodies, and in how long it may say
    nothing of use. There may be so many of them."""

    _timer: asyncio.TimerHandle | None = None
    _beside = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.abort()
            return
        self._await_head()

    def data_received(self, data: bytes) -> None:
        self._beside += len(data)
        super().data_received(data)
        if self._beside > HEAD_BYTES:
            self.transport.abort()
        elif not self._is_busy() and self.timeout_keep_alive_task is None:
            self._await_head()  # of a line without a request, or of the rest of one that has been answered

    def on_message_begin(self) -> None:
        super().on_message_begin()
        extensions: dict[str, Any] = {ABORT: self.transport.abort}
        self.scope["extensions"] = extensions
        self._await_head()

    def on_headers_complete(self) -> None:
        self._beside = 0
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._beside = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._beside = 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._too_late)

    def _too_late(self) -> None:
        self._timer = None
        if self._is_busy():  # with the request before
            self._await_head()
        else:
            self.transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Uvicorn(uvicorn.Server):
    """Signals are the frontend's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves an App on an address, beside the frontend's gRPC server."""

    def __init__(self, app: App, tls: Fresh[Identity] | None, drain_seconds: float) -> None:
        """`tls`: what the server proves that it is itself with; None: plain text. `drain_seconds`: see `stop`."""
        self._app = app
        self._config = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=math.ceil(drain_seconds),
        )
        self._config.load()
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # else strangers write lines of their own
        self._config.ssl = _context(tls) if tls is not None else None
        self._server = _Uvicorn(self._config)
        self._serving: asyncio.Task[None] | None = None
        self.draining = False
        self.address = ("", 0)

    async def start(self, listen: str) -> None:
        """Binds and tells the address; ends the process with status 2 where that cannot be had."""
        host, _, port = listen.rpartition(":")
        try:
            bound = _bound(host.strip("[]"), int(port))
        except OSError as error:
            print(f"--http-listen = {listen!r}: the address cannot be bound: {error.strerror}", file=sys.stderr)
            raise SystemExit(2) from None
        self._serving = asyncio.create_task(self._server.serve(sockets=[bound]))
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(0.001)
        self.address = (host, bound.getsockname()[1])
        log.info("listening over HTTP", address=f"{host}:{self.address[1]}")

    def known_here(self, method: str) -> bool:
        """Whether calls of a route, by its name, wait for no worker."""
        return method in self._app.known_here

    def announce_drain(self) -> None:
        """/health says 503 from now on, so that balancers look elsewhere."""
        self.draining = True

    async def stop(self) -> None:
        """Takes no more connections; ends once those that are there have their replies, or the time is over."""
        if self._serving is not None:
            self._server.should_exit = True
            await self._serving


def _bound(host: str, port: int) -> socket.socket:
    """Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    bound = socket.create_server(
        address[:2], family=family, backlog=BACKLOG, dualstack_ipv6=family == socket.AF_INET6 and host == "::"
    )
    # Connections take both over. asyncio sets the first one by itself only where it has made the listener: without it,
    # the body of a reply, which is written after its head, waits 40 ms for the head to be acknowledged.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux":
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MILLISECONDS)
    return bound


def _context(tls: Fresh[Identity]) -> ssl.SSLContext:
    """For handshakes: each goes on with what the files hold by then."""

    def renewed(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = tls.value.context

    first = tls.value.context
    first.sni_callback = renewed
    return first

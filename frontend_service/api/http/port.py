"""The HTTP port, on the frontend's event loop: uvicorn over httptools, bound, served and drained."""

import asyncio
import socket
import ssl
import sys

import httptools
import structlog
import uvicorn
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from frontend_service.api.http.app import ABORT, App
from shared.command import refuse_address
from shared.security import Fresh, Identity

UNREAD_MILLISECONDS = 30_000
"""Time after which a connection ends when its caller reads nothing of a reply."""
IDLE_SECONDS = 75
"""Longest time between two requests of a connection: longer than load balancers keep idle connections."""
BACKLOG = 2048
"""Most connections that wait to be accepted."""
HEAD_BYTES, HEADERS = 64 * 1024, 100
"""Limits of a head, and of the bytes around bodies (chunk sizes, trailers): in bytes, and in header lines, since each
takes a hundred bytes of memory beside its own."""

PIPELINED = 16
"""Most requests of a connection that wait behind the one that is computed."""

log = structlog.get_logger("server")


class Protocol(HttpToolsProtocol):
    """One connection, by uvicorn, with five differences: an offered upgrade costs no body, trailers are no headers,
    heads and waiting requests have limits, who leaves is computed for no more, and a refusal overtakes no answer.

    llhttp stops after the head of a request that offers another protocol, and takes its body for bytes of that
    protocol; uvicorn drops them then (its issue 2722). Java's HttpClient offers h2c. Offers are ignored (RFC 9110,
    7.8): such a head is parsed again, without its offer.
    """

    _is_offer = _is_refused = False
    _beside = 0  # bytes around bodies in a row
    _computed: RequestResponseCycle | None = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._computed = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tells the request that is computed, too: uvicorn tells the one that came last, which may wait behind it."""
        if self._computed is not None and not self._computed.response_complete:
            self._computed.disconnected = True
            self._computed.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if not self._is_answered or not self.cycle.more_body:  # the rest of a refused body keeps the reply's time limit
            self._unset_keepalive_if_required()
        self._beside += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(f"this is no request of HTTP/1.1, or its head has over {HEADERS} lines or {HEAD_BYTES} bytes")
            return
        if self._beside > HEAD_BYTES:
            self._refuse(f"a head, or what comes beside a body, may have {HEAD_BYTES} bytes")
        elif self._is_answered and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(IDLE_SECONDS, self.timeout_keep_alive_handler)

    @property
    def _is_answered(self) -> bool:
        """Whether the last request has its whole response."""
        return self.cycle is not None and bool(self.cycle.response_complete)

    def _refuse(self, message: str) -> None:
        """Ends the connection: with a status of 400, or behind the answers to the requests that came before."""
        cycle, self._is_refused = self.cycle, True
        if self._is_answered and cycle.more_body:
            self.transport.close()  # it was told already
        elif (
            cycle is None or self._is_answered or (cycle.more_body and not self.pipeline and not cycle.response_started)
        ):
            self.send_400_response(message)
        elif cycle.more_body and self.pipeline:  # it waits, and will not be whole
            self.pipeline.popleft()
            (self.pipeline[0][0] if self.pipeline else self._computed).keep_alive = False  # type: ignore[union-attr]
        else:
            cycle.keep_alive = False

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                data = self._head_without_offer() + data[stopped.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            else:
                return

    def _head_without_offer(self) -> bytes:
        first = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        lines = (b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade")
        return b"".join((first, *lines, b"\r\n"))

    # Called by httptools.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: self.transport.abort}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        too_large = (
            self._beside > HEAD_BYTES and sum(len(name) + len(value) for name, value in self.headers) > HEAD_BYTES
        )
        if too_large or len(self.headers) > HEADERS or self.parser.get_method() == b"CONNECT":
            raise ValueError("the head is refused")
        if len(self.pipeline) >= PIPELINED:
            raise ValueError("too many requests wait")
        self._is_offer = self.parser.should_upgrade()
        if not self._is_offer:
            super().on_headers_complete()
            self._unset_keepalive_if_required()
            if self.pipeline:  # uvicorn reads no more then, and would not see the caller leave
                self.flow.resume_reading()
            self.headers = []  # of trailers, which are no headers (RFC 9110, 6.5.1)
            self._beside = 0

    def on_body(self, body: bytes) -> None:
        self._beside = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_offer:
            self._beside = 0
            self.cycle.keep_alive &= self.parser.should_keep_alive()  # trailers may end the connection
            super().on_message_complete()
            self.cycle.more_body = False  # of a request that was answered before its end, too


class HttpServer:
    """Serves an App on an address, beside the frontend's gRPC server.

    `local_routes`: names of the routes that are answered without a worker.
    """

    def __init__(self, app: App, tls: Fresh[Identity] | None, drain_seconds: float) -> None:
        """`tls`: the server's certificate; None: plain text. `drain_seconds`: see `stop`."""
        self._tls = tls
        self.local_routes = app.local_routes
        config = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            log_level="critical",  # what is a bug the app logs itself
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=IDLE_SECONDS,
        )
        config.timeout_graceful_shutdown = drain_seconds  # type: ignore[assignment]  # uvicorn waits so long
        self._server = uvicorn.Server(config)
        self._ticks: asyncio.Task[None] | None = None
        self.draining = False
        self.address = ("", 0)

    async def start(self, listen: str) -> None:
        """Binds the address and logs it; ends the process with status 2 where it cannot be bound."""
        host, _, port = listen.rpartition(":")
        try:
            listener = _bound(host.strip("[]"), int(port))
        except OSError:
            refuse_address("--http-listen", listen)
        self.address = (host, listener.getsockname()[1])
        config = self._server.config
        config.load()
        config.ssl = None if self._tls is None else _context(self._tls)
        self._server.lifespan = config.lifespan_class(config)
        await self._server.on_tick(0)  # the date of the first replies
        await self._server.startup([listener])
        self._ticks = asyncio.create_task(self._server.main_loop())
        log.info("listening over HTTP", address=f"{host}:{self.address[1]}")

    def announce_drain(self) -> None:
        """Makes /health answer 503 from now on, so that load balancers choose another frontend."""
        self.draining = True

    async def stop(self) -> None:
        """Takes no more connections; returns once all open ones have their replies, or the drain time is over."""
        if self._ticks is None:
            return
        self._ticks.cancel()
        await self._server.shutdown()
        for connection in tuple(self._server.server_state.connections):
            assert isinstance(connection, Protocol)
            connection.transport.abort()


def _bound(host: str, port: int) -> socket.socket:
    """Binds a listening socket. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.create_server(
        address[:2], family=family, backlog=BACKLOG, dualstack_ipv6=family == socket.AF_INET6 and host == "::"
    )
    # Connections inherit both options. asyncio sets the first one only on listeners that it made itself: without it,
    # the body of a reply, which is written after its head, waits 40 ms for the head to be acknowledged.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux":
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MILLISECONDS)
    return listener


def _context(tls: Fresh[Identity]) -> ssl.SSLContext:
    """The context in which handshakes begin; each one continues with the certificate that the files hold by then."""

    def use_current(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = tls.value.context

    context = tls.value.context
    context.sni_callback = use_current
    return context

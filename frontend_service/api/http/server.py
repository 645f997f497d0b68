"""The HTTP port, on the frontend's event loop: bound, served and drained."""

import asyncio
import socket
import ssl
import sys

import structlog

from frontend_service.api.http import connection
from frontend_service.api.http.app import App
from frontend_service.api.http.connection import Connection
from frontend_service.api.http.open_connections import OpenConnections
from shared.command import refuse_address
from shared.security import Fresh, Identity

UNREAD_MILLISECONDS = 30_000
"""Time after which a connection ends when its caller reads nothing of a reply."""
BACKLOG = 2048
"""Most connections that wait to be accepted."""

log = structlog.get_logger("server")


class HttpServer:
    """Serves an App on an address, beside the frontend's gRPC server."""

    def __init__(self, app: App, tls: Fresh[Identity] | None, drain_seconds: float) -> None:
        """`tls`: the server's certificate; None: plain text. `drain_seconds`: see `stop`."""
        self._app, self._tls, self._drain_seconds = app, tls, drain_seconds
        self._connections = OpenConnections()
        self._listener: asyncio.Server | None = None
        self.draining = False
        self.address = ("", 0)

    async def start(self, listen: str) -> None:
        """Binds the address and logs it; ends the process with status 2 where it cannot be bound."""
        host, _, port = listen.rpartition(":")
        try:
            listener = _bound(host.strip("[]"), int(port))
        except OSError:
            refuse_address("--http-listen", listen)
        context = None if self._tls is None else _context(self._tls)
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: Connection(self._app, self._connections),
            sock=listener,
            backlog=BACKLOG,
            ssl=context,
            ssl_handshake_timeout=None if context is None else connection.HEAD_SECONDS,
        )
        self.address = (host, listener.getsockname()[1])
        log.info("listening over HTTP", address=f"{host}:{self.address[1]}")

    def needs_no_worker(self, method: str) -> bool:
        """Tells whether calls of a route, by its name, are answered without a worker."""
        return method in self._app.local_routes

    def announce_drain(self) -> None:
        """Makes /health answer 503 from now on, so that load balancers choose another frontend."""
        self.draining = True

    async def stop(self) -> None:
        """Takes no more connections; returns once all open ones have their replies, or the drain time is over."""
        if self._listener is None:
            return
        self._listener.close()
        await self._connections.end(self._drain_seconds)


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

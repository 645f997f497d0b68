"""The port, on the frontend's loop: bound, served and drained."""

import asyncio
import socket
import ssl
import sys

import structlog

from frontend_service.api.http import connection
from frontend_service.api.http.app import App
from frontend_service.api.http.connection import Connection
from frontend_service.api.http.open_connections import OpenConnections
from shared.security.reloaded_file import Fresh
from shared.security.tls import Identity

UNREAD_MILLISECONDS = 30_000
"""Time after which a connection ends whose caller takes nothing of a reply."""
BACKLOG = 2048
"""Connections that wait to be accepted."""

log = structlog.get_logger("server")


class HttpServer:
    """Serves an App on an address, beside the frontend's gRPC server."""

    def __init__(self, app: App, tls: Fresh[Identity] | None, drain_seconds: float) -> None:
        """`tls`: what the server proves that it is itself with; None: plain text. `drain_seconds`: see `stop`."""
        self._app, self._tls, self._drain_seconds = app, tls, drain_seconds
        self._present = OpenConnections()
        self._listener: asyncio.Server | None = None
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
        context = None if self._tls is None else _context(self._tls)
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: Connection(self._app, self._present),
            sock=bound,
            backlog=BACKLOG,
            ssl=context,
            ssl_handshake_timeout=None if context is None else connection.HEAD_SECONDS,
        )
        self.address = (host, bound.getsockname()[1])
        log.info("listening over HTTP", address=f"{host}:{self.address[1]}")

    def needs_no_worker(self, method: str) -> bool:
        """Tells whether calls of a route, by its name, wait for no worker."""
        return method in self._app.needs_no_worker

    def announce_drain(self) -> None:
        """/health says 503 from now on, so that balancers look elsewhere."""
        self.draining = True

    async def stop(self) -> None:
        """Takes no more connections; ends once those that are there have their replies, or the time is over."""
        if self._listener is None:
            return
        self._listener.close()
        await self._present.end(self._drain_seconds)


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
    """The context in which handshakes begin: each goes on with what the files hold by then."""

    def renewed(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = tls.value.context

    first = tls.value.context
    first.sni_callback = renewed
    return first

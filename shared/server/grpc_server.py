"""The gRPC server of both processes: binds, logs the address, reports health, drains and stops."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Executor
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from shared.command import refuse_address
from shared.security import Fresh, Identity
from shared.server.calls import Calls
from shared.server.interceptor import Interceptor, Rpcs, TellStatus, unchanged
from shared.server.options import server_options
from shared.value_codec import MESSAGE_BYTES, check_entries

LAST_WORDS = 0.2
"""Seconds for what is already written to reach its client."""

log = structlog.get_logger("server")
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
Context = grpc.aio.ServicerContext[Any, Any]


class _Health(health_pb2_grpc.HealthServicer):
    """gRPC's health service. It waits for none of its watchers.

    That of grpcio-health-checking does: one watcher that reads nothing holds up all changes of a status, and the drain.
    Specification: github.com/grpc/grpc, doc/health-checking.md.
    """

    def __init__(self) -> None:
        self._statuses: dict[str, int] = {"": SERVING}
        self._changed = asyncio.Event()

    def set(self, services: Iterable[str], status: int) -> None:
        """Sets the status of services; their watchers are told."""
        self._statuses |= dict.fromkeys(services, status)
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        if request.service not in self._statuses:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return health_pb2.HealthCheckResponse(status=self._statuses[request.service])

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Tells the status, and each change; of a service that nobody knows as well."""
        last = None
        while True:
            changed, status = self._changed, self._statuses.get(request.service, SERVICE_UNKNOWN)
            if status != last:
                yield health_pb2.HealthCheckResponse(status=status)
                last = status
            await changed.wait()

    async def List(self, request: Any, context: Context) -> Any:
        statuses = {name: health_pb2.HealthCheckResponse(status=status) for name, status in self._statuses.items()}
        return health_pb2.HealthListResponse(statuses=statuses)  # type: ignore[attr-defined]  # the stubs lack it


class Server:
    """A gRPC server with health and reflection. Every service is NOT_SERVING until `set_ready`.

    `port`: the one that it has bound.
    """

    def __init__(
        self,
        services: Iterable[str],
        calls: Calls,
        *,
        threads: Executor,
        connection_age: bool,
        rpcs: Rpcs | None = None,
        tell: TellStatus = unchanged,
        tls: Fresh[Identity] | None = None,
        check_large: Callable[[bytes], None] = check_entries,
        received: int = MESSAGE_BYTES,
    ) -> None:
        """`services`: full names; `calls`: of the process, shared with its other APIs; others as in `Interceptor`.

        `tls`: the identity of the server; None for plain text. `received`: most bytes of a message that it takes.
        """
        self._tls = tls
        self._services = list(services)
        self._calls = calls
        self.grpc = grpc.aio.server(
            interceptors=[Interceptor(calls, threads, rpcs, tell, check_large)],
            options=server_options(connection_age=connection_age, received=received),
        )
        self.port = 0
        self._health, self._drains = _Health(), False
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        reflection.enable_server_reflection([*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME], self.grpc)

    async def start(self, listen: str) -> None:
        """Binds and logs the address; ends the process with status 2 if that fails."""
        try:
            self.port = self._bound(listen)
        except RuntimeError:
            await self.stop()
            refuse_address("--listen", listen)
        await self.set_ready(False)
        await self.grpc.start()
        log.info("listening", address=f"{listen.rpartition(':')[0]}:{self.port}")

    def _bound(self, listen: str) -> int:
        if self._tls is None:
            return self.grpc.add_insecure_port(listen)
        return self.grpc.add_secure_port(listen, _server_credentials(self._tls))

    async def set_ready(self, ready: bool) -> None:
        """Sets the health status of all services; the empty name always says that the process lives."""
        if not self._drains:
            self._health.set(self._services, SERVING if ready else NOT_SERVING)

    async def announce_drain(self) -> None:
        """Sets all names to NOT_SERVING for good, so that load balancers send calls elsewhere."""
        self._drains = True
        self._health.set(["", *self._services], NOT_SERVING)

    async def finish(self, seconds: float) -> bool:
        """Ends all streams, and waits at most `seconds` until no call runs; returns whether all have finished."""
        self._calls.end_streams()
        try:
            await asyncio.wait_for(self._calls.idle(), seconds)
        except TimeoutError:
            log.warning("drain cut short")
            return False
        return True

    async def stop(self, grace: float = 0.0) -> None:
        """Refuses new calls, ends streams, and returns when all calls have ended, or after `grace` seconds.

        Calls have LAST_WORDS at least, since gRPC prints a trace of each call that it has to cancel.
        """
        self._calls.end_streams()
        stopping = asyncio.create_task(self.grpc.stop(max(grace, LAST_WORDS)))
        if grace:
            await self.finish(grace)
        await asyncio.gather(stopping, self.grpc.stop(LAST_WORDS))


def _server_credentials(files: Fresh[Identity]) -> grpc.ServerCredentials:
    """Credentials of a server: each handshake uses the current files; open connections stay."""
    current = files.value

    def renewed() -> grpc.ServerCertificateConfiguration | None:  # None: nothing is new
        nonlocal current
        if (now := files.value) is current:
            return None
        current = now
        return _configuration(now)

    first = _configuration(current)
    return grpc.dynamic_ssl_server_credentials(first, renewed, current.ca is not None)  # type: ignore[arg-type]


def _configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(identity.key, identity.certificate)], identity.ca)


async def until_told_to_stop() -> None:
    """Waits for SIGTERM or SIGINT; a second one ends the process at once, where `shared.command.begin` began it."""
    signalled, before = asyncio.Event(), signal.getsignal(signal.SIGINT)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled.set)
    try:
        await signalled.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        signal.signal(signal.SIGINT, before)
    log.info("draining")

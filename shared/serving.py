"""How both processes serve: bind, say where, run until told to stop, drain."""

import asyncio
import signal
import sys
from collections.abc import Iterable
from concurrent.futures import Executor

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from shared.rpc import Calls, server_options

log = structlog.get_logger("server")
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Server:
    """A gRPC server with health and reflection. Every service is NOT_SERVING until `set_ready`."""

    def __init__(
        self, services: Iterable[str], *, threads: Executor, timeout: float | None, reflect: bool, connection_age: bool
    ) -> None:
        """`services`: full names; `timeout`: seconds for calls without a deadline; others as in `rpc`."""
        self._services = list(services)
        calls = Calls(timeout=timeout, threads=threads)
        self.grpc = grpc.aio.server(interceptors=[calls], options=server_options(connection_age=connection_age))
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        if reflect:
            reflection.enable_server_reflection(
                [*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME], self.grpc
            )

    async def start(self, listen: str) -> None:
        """Binds and tells the address; ends the process with status 2 where that cannot be had."""
        try:
            port = self.grpc.add_insecure_port(listen)
        except RuntimeError:
            await self.stop(0)
            print(f"--listen = {listen!r}: the address cannot be bound", file=sys.stderr)
            raise SystemExit(2) from None
        await self._health.set("", SERVING)
        await self.set_ready(False)
        await self.grpc.start()
        log.info("listening", address=f"{listen.rpartition(':')[0]}:{port}")

    async def set_ready(self, ready: bool) -> None:
        """What health says of the services; the empty name says that the process lives."""
        for service in self._services:
            await self._health.set(service, SERVING if ready else NOT_SERVING)

    async def announce_drain(self) -> None:
        """All names become NOT_SERVING for good, so that balancers look elsewhere."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace: float) -> None:
        """Takes no new calls; gives those that run `grace` seconds."""
        await self.grpc.stop(grace)


async def until_told_to_stop() -> None:
    """Returns at SIGTERM or SIGINT."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    await told.wait()
    log.info("draining")

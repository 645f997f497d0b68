"""Whether the worker serves, followed for ever over gRPC's health service. Knows nothing of models and jobs."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from frontend_service.worker.connection import Connection
from shared.errors import SelvageError
from shared.services import WORKER_SERVICES

FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0
SERVING = health_pb2.HealthCheckResponse.SERVING

log = structlog.get_logger("worker")


class Health:
    """Tells when a worker is found and when it is lost."""

    def __init__(
        self, connection: Connection, found: Callable[[], Awaitable[None]], lost: Callable[[str], Awaitable[None]]
    ) -> None:
        """`found` may raise what makes the worker unusable; `lost` is told why, and again after each failed try."""
        self._connection = connection
        self._found = found
        self._lost = lost

    async def follow(self) -> None:
        """Never returns; after a failure tries again, soon and then less soon."""
        wait = FIRST_WAIT
        while True:
            why = "it ended the health watch"
            try:
                async for response in self._watch():
                    if response.status == SERVING:
                        await self._found()
                        wait = FIRST_WAIT
                    else:
                        await self._lost("it reports NOT_SERVING")
            except grpc.aio.AioRpcError as error:
                why = error.code().name
            except SelvageError as error:
                why = error.message
            except Exception as error:  # a card or tokenizer of another version: stay alive, and say so
                log.error("worker not understood", target=self._connection.target, exc_info=error)
                why = "its card or tokenizer is not understood; the log of the frontend has it"
            await self._lost(why)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(wait * 2, LONGEST_WAIT)

    def _watch(self) -> Any:
        stub: Any = health_pb2_grpc.HealthStub(self._connection.channel)
        return stub.Watch(health_pb2.HealthCheckRequest(service=WORKER_SERVICES[0]))

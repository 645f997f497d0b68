"""A worker answers for its health while it computes."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.instant_worker import card, servicer_of
from selvage.worker.v1.worker_pb2_grpc import add_WorkerServiceServicer_to_server
from shared.server.calls import Calls
from shared.server.grpc_server import Server
from shared.server.options import WORKER_SERVICES
from support.references import eventually
from support.threaded_engine import FakeEngine, ask, job, outcome, running_driver


async def test_health_answers_while_a_step_is_computed() -> None:
    """The event loop never waits for the device: here a step lasts until all checks are answered."""
    with ThreadPoolExecutor(1) as device, ThreadPoolExecutor(1) as threads:
        engine = FakeEngine(device)
        async with running_driver(engine) as running:
            server = Server(WORKER_SERVICES, Calls(timeout=None), threads=threads, connection_age=False)
            add_WorkerServiceServicer_to_server(servicer_of(running, card(), b"", threads), server.grpc)
            await server.start("127.0.0.1:0")
            await server.set_ready(True)
            engine.gate.clear()
            computed = ask(running, job(1, 5))
            await eventually(lambda: running._scheduler.step_running is not None)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
                health: Any = health_pb2_grpc.HealthStub(channel)
                for _ in range(10):
                    told = await health.Check(health_pb2.HealthCheckRequest(), timeout=240)
                    assert told.status == health_pb2.HealthCheckResponse.SERVING
            assert not computed.done()
            engine.gate.set()
            assert await outcome(computed) == (5,)
            await server.stop()

"""Workers that are stopped or cut off: told in time, and used again when they answer again.

Both at once: each is silent for the seconds after which a worker is lost, and nothing shortens these.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from harness.member import ServiceProcess
from harness.stack import stack
from selvage.v1 import embedding_pb2
from shared.server.options import PUBLIC_SERVICES, WORKER_SERVICES
from support.random_models import random_model
from support.references import Calls, eventually, refusal

TINY = "tiny-bert"
REQUEST = embedding_pb2.EmbedRequest(texts=["w1 w2 w3", "w4"])
IN_TIME, PAUSE = 120.0, 0.05
"""Seconds until health tells it, on a machine that others use too (some 6 of its own), and between two questions."""


async def statuses(channel: grpc.aio.Channel) -> set[int]:
    """What health says of the services."""
    health = health_pb2_grpc.HealthStub(channel)
    asked = [health.Check(health_pb2.HealthCheckRequest(service=name)) for name in PUBLIC_SERVICES]
    return {each.status for each in await asyncio.gather(*asked)}


async def until_lost(channel: grpc.aio.Channel) -> None:
    """Every name is NOT_SERVING in time, and a call is unavailable at once."""
    async with asyncio.timeout(IN_TIME):
        while await statuses(channel) != {health_pb2.HealthCheckResponse.NOT_SERVING}:  # noqa: ASYNC110
            await asyncio.sleep(PAUSE)  # asked without one, it would take a core from other tests for seconds
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async with asyncio.timeout(IN_TIME):  # at once, on whatever machine; it would wait ten minutes
            await Calls(channel).embedding.Embed(REQUEST, timeout=300)
    assert refusal(raised.value)[:2] == ("UNAVAILABLE", "WORKER_UNAVAILABLE")


async def until_found(channel: grpc.aio.Channel) -> None:
    """Served again, without any help."""

    async def found() -> bool:
        return await statuses(channel) == {health_pb2.HealthCheckResponse.SERVING}

    await eventually(found)
    await Calls(channel).embedding.Embed(REQUEST, timeout=240)


async def stopped() -> None:
    async with stack(random_model(TINY)) as pair:
        texts = [f"w{number} " + "w1 " * 499 for number in range(400)]
        waiting = asyncio.ensure_future(
            Calls(pair.channel).embedding.Embed(embedding_pb2.EmbedRequest(texts=texts), timeout=300)
        )
        await asyncio.sleep(0)
        os.kill(pair.worker.pid, signal.SIGSTOP)
        try:
            await until_lost(pair.channel)
            (error,) = await asyncio.gather(waiting, return_exceptions=True)
            assert isinstance(error, grpc.aio.AioRpcError)
            assert error.code() is grpc.StatusCode.UNAVAILABLE
        finally:
            os.kill(pair.worker.pid, signal.SIGCONT)
        await until_found(pair.channel)


class Wire:
    """A proxy that passes bytes on until it is cut; then connections stay open and nothing comes through."""

    def __init__(self, target: str) -> None:
        self._host, _, self._port = target.rpartition(":")
        self._whole = asyncio.Event()
        self._whole.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """The address to connect to."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        try:
            yield f"{host}:{port}"
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for writer in self._writers:  # one that is not closed is a warning, in whatever test collects it
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        there_reader, there_writer = await asyncio.open_connection(self._host, int(self._port))
        self._writers += [writer, there_writer]
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.create_task(self._pass(source, sink))
            self._tasks.add(task)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            await self._whole.wait()
            sink.write(data)
            await sink.drain()
        sink.close()


async def cut_off() -> None:
    worker = ServiceProcess("gpu_worker", WORKER_SERVICES, {"model": random_model(TINY)})
    await worker.start()
    wire = Wire(worker.address)
    async with wire.open() as address:
        frontend = ServiceProcess("frontend_service", PUBLIC_SERVICES, {"worker": address, "drain-delay": 0})
        await frontend.start()
        try:
            await frontend.wait_ready()
            async with grpc.aio.insecure_channel(frontend.address) as channel:
                await Calls(channel).embedding.Embed(REQUEST)
                wire.cut()
                await until_lost(channel)
                wire.mend()
                await until_found(channel)
        finally:
            await frontend.stop()
            await worker.stop()


@pytest.fixture(scope="module")
async def both() -> AsyncIterator[dict[str, asyncio.Task[None]]]:
    """What happens to either, begun at once."""
    begun = {each.__name__: asyncio.create_task(each()) for each in (stopped, cut_off)}
    yield begun
    await asyncio.wait(begun.values())


async def test_a_stopped_worker_is_lost_and_found(both: dict[str, asyncio.Task[None]]) -> None:
    """SIGSTOP: its sockets live, nobody answers. What was under way gets UNAVAILABLE; SIGCONT brings it back."""
    await both["stopped"]


async def test_a_worker_behind_a_dead_wire_is_lost_and_found(both: dict[str, asyncio.Task[None]]) -> None:
    """No connection ends, no packet comes: as with a firewall that forgot it."""
    await both["cut_off"]

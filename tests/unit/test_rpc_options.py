"""Channel and server options that have failed in silence before."""

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from shared.rpc.options import PENDING, channel_options, server_options

PING_INTERVAL = "grpc.http2.min_ping_interval_without_data_ms"
EAGER_PINGS = {"grpc.keepalive_time_ms": 1000, "grpc.http2.max_pings_without_data": 0}


async def outlives_idle_pings(options: dict[str, int]) -> bool:
    """Whether a health watch survives six seconds of idle keepalive pings, one a second (grpc sends no faster)."""
    server = grpc.aio.server(options=list(options.items()))
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = dict(channel_options()) | EAGER_PINGS
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=list(client.items())) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest())
            await watch.read()
            second = asyncio.ensure_future(watch.read())
            ended, _ = await asyncio.wait([second], timeout=6)
            second.cancel()
            await asyncio.wait([second])
            return not ended
    finally:
        await server.stop(0)


async def test_keepalive_pings_do_not_end_an_idle_connection() -> None:
    """A server takes offence at pings that come too often; ours is told how often is too often, by the right name.

    At the same time the control: without that option they would end it.
    """
    options = dict(server_options(connection_age=False))
    assert options[PING_INTERVAL] < dict(channel_options())["grpc.keepalive_time_ms"]
    without = {name: value for name, value in options.items() if name != PING_INTERVAL}
    outlived = await asyncio.gather(*map(outlives_idle_pings, (options | {PING_INTERVAL: 10}, without)))
    assert outlived == [True, False]


async def cancelled(options: dict[str, int], calls: int = 3000) -> int:
    """How many of so many calls at once a server with these options cancels by itself."""
    server = grpc.aio.server(options=list(options.items()))
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=channel_options()) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            begun = [stub.Check(health_pb2.HealthCheckRequest()) for _ in range(calls)]
            return [await call.code() for call in begun].count(grpc.StatusCode.CANCELLED)
    finally:
        await server.stop(0)


async def test_a_burst_of_calls_is_not_cancelled_at_random() -> None:
    """Thousands that come at once all reach Python, where overload is refused by name."""
    assert await cancelled(dict(server_options(connection_age=False))) == 0


async def test_by_default_it_would_be() -> None:
    """The control."""
    options = dict(server_options(connection_age=False))
    assert await cancelled({name: value for name, value in options.items() if name not in PENDING}) > 0

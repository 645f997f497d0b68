"""Channel and server options that have failed in silence before."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from shared.server.options import channel_options, server_options

PING_INTERVAL = "grpc.http2.min_ping_interval_without_data_ms"
EAGER_PINGS = {"grpc.keepalive_time_ms": 1000, "grpc.http2.max_pings_without_data": 0}
PATIENT = {"grpc.http2.ping_timeout_ms": 600_000}
"""A machine that stands still answers no ping."""


@asynccontextmanager
async def watched_through_pings(options: dict[str, int]) -> AsyncIterator[asyncio.Task[Any]]:
    """Ends when a health watch does, on a connection that is idle but for pings, one a second: grpc sends no faster."""
    server = grpc.aio.server(options=list((options | PATIENT).items()))
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = dict(channel_options()) | EAGER_PINGS | PATIENT
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=list(client.items())) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest())
            await watch.read()
            second = asyncio.ensure_future(watch.read())
            yield second
            second.cancel()
            await asyncio.wait([second])
    finally:
        await server.stop(0)


async def test_keepalive_pings_do_not_end_an_idle_connection() -> None:
    """A server takes offence at pings that come too often; ours is told how often is too often, by the right name.

    At the same time the control: without that option they end it. Ours has had as many by then, and one more.
    """
    options = dict(server_options(connection_age=False))
    assert options[PING_INTERVAL] < dict(channel_options())["grpc.keepalive_time_ms"]
    without = {name: value for name, value in options.items() if name != PING_INTERVAL}
    async with (
        watched_through_pings(options | {PING_INTERVAL: 10}) as ours,
        watched_through_pings(without) as other,
    ):
        ended, _ = await asyncio.wait([other], timeout=120)
        assert ended
        ended, _ = await asyncio.wait([ours], timeout=1.5)
        assert not ended


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


GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Of an HTTP/2 client: its preface and empty settings."""


@asynccontextmanager
async def connections(count: int, greeting: bytes, **changed: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    """To a server with our options, but for those `changed` (without `grpc.`); they send no call."""
    options = dict(server_options(connection_age=False))
    over = {f"grpc.{name}": value for name, value in changed.items()}
    assert set(over) <= set(options)
    server = grpc.aio.server(options=list((options | over).items()))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    for _, writer in opened:
        writer.write(greeting)
    try:
        yield [reader for reader, _ in opened]
    finally:
        for _, writer in opened:
            writer.close()
        await server.stop(0)


async def is_closed(reader: asyncio.StreamReader, seconds: float) -> bool:
    """Within that time."""
    try:
        async with asyncio.timeout(seconds):
            while await reader.read(65_536):
                pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize(
    ("greeting", "name"), [(b"", "server_handshake_timeout_ms"), (GREETING, "max_connection_idle_ms")]
)
async def test_connections_without_a_call_are_closed(greeting: bytes, name: str) -> None:
    """Those that say nothing, and those that greet and then say nothing."""
    async with connections(3, greeting, **{name: 300}) as opened:
        assert all(await asyncio.gather(*(is_closed(each, 120) for each in opened)))
    async with connections(1, greeting, **{name: 600_000}) as opened:
        assert not await is_closed(opened[0], 0.9)


async def test_connections_are_counted() -> None:
    """Above the limit they are closed at once; the others stay."""
    async with connections(8, GREETING, max_allowed_incoming_connections=5) as opened:
        pending = {asyncio.create_task(is_closed(each, 240)) for each in opened}
        while len(pending) > 5:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            assert all(each.result() for each in done)
        _, stayed = await asyncio.wait(pending, timeout=0.5)
        assert len(stayed) == 5
        for each in stayed:
            each.cancel()


async def test_a_call_is_cancelled_at_its_deadline_though_its_client_says_nothing() -> None:
    """So the interceptor needs no timer of its own for a call that has a deadline."""
    outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def wait(_: Any, context: Any) -> bytes:
        try:
            await asyncio.sleep(120)
        except asyncio.CancelledError:
            outcome.set_result("cancelled")
            raise
        return b""

    headers = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/s/Wait"), (b":authority", b"a")]
    headers += [(b"te", b"trailers"), (b"content-type", b"application/grpc"), (b"grpc-timeout", b"300m")]
    headers_block = b"".join(bytes([0, len(name)]) + name + bytes([len(value)]) + value for name, value in headers)
    server = grpc.aio.server(options=server_options(connection_age=False))
    methods: Any = {"Wait": grpc.stream_unary_rpc_method_handler(wait)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(GREETING + bytes([0, 0, len(headers_block), 1, 4, 0, 0, 0, 1]) + headers_block)
        assert await asyncio.wait_for(outcome, 60) == "cancelled"
    finally:
        writer.close()
        await server.stop(0)

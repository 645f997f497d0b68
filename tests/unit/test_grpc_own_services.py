"""Health and reflection: bounded as other methods are, and needing no key."""

import asyncio
import struct
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_status import rpc_status

from shared.caller import Caller
from shared.server.admission import Bounds
from shared.server.calls import Calls
from shared.server.grpc_server import Server
from shared.server.interceptor import FOREIGN
from shared.server.options import channel_options
from support.references import eventually

OURS = "selvage.v1.EmbeddingService"
CHECK, WATCH = (f"{FOREIGN}health.v1.Health/{name}" for name in ("Check", "Watch"))
REFLECT = f"{FOREIGN}reflection.v1alpha.ServerReflection/ServerReflectionInfo"
STREAMS = 8
HELD = Caller(method="Embed", request_id="id", key="a")
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
}


@asynccontextmanager
async def served(calls: Calls, *, stops_within: float = 0.0) -> AsyncIterator[tuple[Server, grpc.aio.Channel]]:
    with ThreadPoolExecutor(1) as threads:
        server = Server([OURS], calls, threads=threads, connection_age=False)
        await server.start("127.0.0.1:0")
        address = f"127.0.0.1:{server.port}"
        try:
            async with grpc.aio.insecure_channel(address, options=channel_options()) as channel:
                yield server, channel
        finally:
            await server.stop(stops_within)


async def opened(channel: grpc.aio.Channel, method: str, message: Message, **options: Any) -> tuple[Any, bytes]:
    """A call whose first reply has come, with that; raises the error instead of it."""
    call = channel.stream_stream(method)(**options)
    await call.write(message.SerializeToString())
    reply = await call.read()
    assert reply is not grpc.aio.EOF, await call.code()
    return call, reply


async def refusal(channel: grpc.aio.Channel, method: str, message: Message) -> grpc.aio.AioRpcError | None:
    """The error that is told instead of a first reply."""
    try:
        await opened(channel, method, message)
    except grpc.aio.AioRpcError as error:
        return error
    return None


def named(service: str = "") -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=service)


async def status_of(channel: grpc.aio.Channel, service: str = "", **options: Any) -> int:
    _, reply = await opened(channel, CHECK, named(service), **options)
    return health_pb2.HealthCheckResponse.FromString(reply).status


def details(error: grpc.aio.AioRpcError) -> tuple[str, str]:
    """The reason and the field of an error of ours."""
    status: Any = rpc_status.from_call(error)
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(bad)
    return info.reason, bad.field_violations[0].field if bad.field_violations else ""


NAMES = [
    (method, field.name)
    for method, described in METHODS.items()
    for field in described.input_type.fields
    if field.type == field.TYPE_STRING
]


@pytest.mark.parametrize(("method", "field"), NAMES)
async def test_a_name_has_256_bytes(method: str, field: str) -> None:
    """Of every method and field, in UTF-8; one byte more is refused with both named."""
    kind = health_pb2.HealthCheckRequest if "health" in method else reflection_pb2.ServerReflectionRequest
    async with served(Calls(timeout=60)) as (_, channel):
        taken = await refusal(channel, method, kind(**{field: "é" * 128}))
        assert taken is None or taken.code() is grpc.StatusCode.NOT_FOUND
        refused = await refusal(channel, method, kind(**{field: "é" * 128 + "e"}))
        assert refused is not None
        assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.details() == f"{field} has 257 bytes, the limit is 256"
        assert details(refused) == ("LIMIT_EXCEEDED", field)


@pytest.mark.parametrize("method", METHODS)
async def test_no_method_takes_a_large_request(method: str) -> None:
    """Whatever it holds: names again and again, groups, or fields that nobody knows."""
    async with served(Calls(timeout=60)) as (_, channel):
        for raw in (b"\n\1a" * 400, b"\x7b" + b"\x08\1" * 600 + b"\x7c", b"\xfa\1\xe0\x5d" + bytes(12_000)):
            call = channel.stream_stream(method)()
            await call.write(raw)
            with pytest.raises(grpc.aio.AioRpcError, match="the limit is 1024"):
                await call.read()


REQUESTS: dict[str, Message] = {
    WATCH: health_pb2.HealthCheckRequest(),
    REFLECT: reflection_pb2.ServerReflectionRequest(list_services=""),
}


async def test_watches_and_reflection_have_places_of_their_own() -> None:
    """Beside those of embedding; all others are refused, and checks are not."""
    calls = Calls(timeout=60, bounds=Bounds(streams=1, health=len(REQUESTS)))
    async with served(calls) as (_, channel):
        with calls.stream(HELD):
            streams = [(await opened(channel, *request))[0] for request in REQUESTS.items()]
            for request in REQUESTS.items():
                refused = await refusal(channel, *request)
                assert refused is not None
                assert details(refused) == ("OVERLOADED", "")
            assert await status_of(channel) == health_pb2.HealthCheckResponse.SERVING
            for stream in streams:
                stream.cancel()


async def test_a_check_is_answered_whatever_else_is_asked() -> None:
    """One that comes slowly too: with every place for requests, streams and slow reads taken, and no byte left."""
    bounds = Bounds(requests=1, streams=1, slow_reads=4, size=1)
    calls = Calls(timeout=60, bounds=bounds)
    async with served(calls) as (_, channel), AsyncExitStack() as taken:
        taken.enter_context(calls.running(HELD))
        taken.enter_context(calls.stream(HELD))
        taken.enter_context(calls.admission.hold(1000))
        calls.admission.reads.slow = bounds.slow_reads
        check = channel.stream_stream(CHECK)()
        await eventually(lambda: calls.admission.checks.slow == 1)  # it has not come whole yet
        assert await status_of(channel) == health_pb2.HealthCheckResponse.SERVING
        await check.write(b"")
        assert await check.read() == b"\10\1"


async def test_checks_that_send_nothing_leave_places_to_others() -> None:
    """More of them than may arrive slowly are refused."""
    calls = Calls(timeout=60, bounds=Bounds(slow_reads=STREAMS))
    async with served(calls) as (_, channel):
        begun = [channel.stream_stream(CHECK)() for _ in range(3 * STREAMS)]
        await eventually(lambda: calls.admission.refused["slow_reads"] == 2 * STREAMS)
        assert calls.admission.checks.slow == STREAMS
        assert await status_of(channel) == health_pb2.HealthCheckResponse.SERVING
        for call in begun:
            call.cancel()
        await eventually(lambda: not calls.admission.checks.slow)


async def test_a_drain_ends_watches_at_once_and_tells_them_first() -> None:
    """The status, then why the call ends; ten minutes of grace are not taken."""
    calls = Calls(timeout=60)
    async with served(calls, stops_within=600) as (server, channel):
        await server.set_ready(True)
        watch, first = await opened(channel, WATCH, named(OURS))
        reflection, _ = await opened(channel, REFLECT, REQUESTS[REFLECT])
        await server.announce_drain()
        await server.set_ready(True)  # too late
        await server.stop(600)
        told = [health_pb2.HealthCheckResponse.FromString(each).status for each in (first, await watch.read())]
        assert told == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]
        for call in (watch, reflection):
            with pytest.raises(grpc.aio.AioRpcError, match="the service is draining") as ended:
                await call.read()
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_statuses_are_told_as_they_change() -> None:
    """To each watcher its service's; an unknown one is told so and watched on, but not checked."""
    async with served(Calls(timeout=60)) as (server, channel):
        watch, first = await opened(channel, WATCH, named(OURS))
        unknown, nobody = await opened(channel, WATCH, named("nobody"))
        await server.set_ready(True)
        told = [health_pb2.HealthCheckResponse.FromString(each).status for each in (first, await watch.read(), nobody)]
        assert told == [2, 1, 3]
        assert not unknown.done()
        assert [await status_of(channel, name) for name in ("", OURS)] == [1, 1]
        refused = await refusal(channel, CHECK, named("nobody"))
        assert refused is not None
        assert refused.code() is grpc.StatusCode.NOT_FOUND


async def test_a_watcher_that_reads_nothing_holds_nobody_up() -> None:
    """Its window is 0 bytes: neither changes of a status wait for it nor other watchers, nor the end."""
    calls = Calls(timeout=60)
    async with served(calls) as (server, channel):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        headers = {
            b":method": b"POST",
            b":scheme": b"http",
            b":path": WATCH.encode(),
            b":authority": b"x",
            b"te": b"trailers",
            b"content-type": b"application/grpc",
        }
        settings, no_window = 4, struct.pack(">HI", 4, 0)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(settings, 0, 0, no_window))
        raw = named(OURS).SerializeToString()
        block = b"".join(b"\0" + prefixed(name) + prefixed(value) for name, value in headers.items())
        writer.write(frame(1, 4, 1, block) + frame(0, 1, 1, b"\0" + struct.pack(">I", len(raw)) + raw))
        await eventually(lambda: calls.admission.streams == 1)
        watch, _ = await opened(channel, WATCH, named(OURS))
        await server.set_ready(True)
        assert await watch.read() == b"\10\1"
        await server.announce_drain()
        writer.close()


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    """RFC 9113, 4.1."""
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def prefixed(text: bytes) -> bytes:
    """A string of RFC 7541, 5.2."""
    return bytes([len(text)]) + text

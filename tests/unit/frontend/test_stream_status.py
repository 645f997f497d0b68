"""How EmbedStreams over grpcio end for callers that misbehave."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import grpc
import pytest
from fakes import service

from frontend_service.api.selvage_v1.servicers import register
from frontend_service.frontend import Frontend
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedStreamRequest, EmbedStreamResponse
from shared.server.admission import Bounds
from shared.server.calls import Calls
from shared.server.interceptor import Interceptor
from shared.server.options import channel_options
from support.references import eventually

ROWS = 4096
"""Texts of a large batch; a row of the fake worker has 32 bytes, so its reply has twice what a stream has under way."""
LARGE = EmbedStreamRequest(id=1, request=EmbedRequest(texts=["a"] * ROWS))
SMALL = EmbedStreamRequest(id=2, request=EmbedRequest(texts=["a"]))
REPLY = range(32 * ROWS, 36 * ROWS)


@asynccontextmanager
async def called(bounds: Bounds) -> AsyncIterator[tuple[Calls, grpc.aio.StreamStreamCall[bytes, EmbedStreamResponse]]]:
    """A stream of raw messages to a server in this process, whose replies come only as they are asked for."""
    made, _ = service()
    calls = Calls(timeout=60, bounds=bounds)
    server = grpc.aio.server(interceptors=[Interceptor(calls, ThreadPoolExecutor(1))])
    register(Frontend(made, calls), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    options = [*channel_options(), ("grpc.http2.lookahead_bytes", 65_536), ("grpc.http2.bdp_probe", 0)]
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            yield (
                calls,
                channel.stream_stream(
                    "/selvage.v1.EmbeddingService/EmbedStream", response_deserializer=EmbedStreamResponse.FromString
                )(),
            )
    finally:
        await server.stop(0)


async def test_who_reads_after_too_long_is_told_so() -> None:
    """After the reply that lay there; until then that one counts, and then nothing does."""
    async with called(Bounds(read_seconds=1.0)) as (calls, call):
        admission = calls.admission
        for _ in range(5):
            await call.write(LARGE.SerializeToString())
        await eventually(lambda: bool(admission.size) and not admission.streams)
        assert admission.size in REPLY
        assert isinstance(await call.read(), EmbedStreamResponse)
        with pytest.raises(grpc.aio.AioRpcError, match=r"no reply was read for 1 s") as raised:
            await call.read()
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: not admission.size)


async def test_who_still_writes_hears_of_a_bad_message() -> None:
    """Not of INTERNAL, which grpc.aio makes of a status that comes while it writes."""
    async with called(Bounds()) as (_, call):
        ending = asyncio.Event()

        async def write() -> None:
            await call.write(SMALL.SerializeToString())
            await call.write(b"\xff\xff")
            while not ending.is_set():
                await call.write(SMALL.SerializeToString())
                await asyncio.sleep(0)
            await call.done_writing()

        writing = asyncio.create_task(write())
        first = await call.read()
        assert isinstance(first, EmbedStreamResponse)
        assert first.id == SMALL.id
        asyncio.get_running_loop().call_later(0.02, ending.set)
        await writing
        with pytest.raises(grpc.aio.AioRpcError, match="not a message of this method") as raised:
            await call.read()
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT

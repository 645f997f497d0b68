"""Clients that misbehave without end; each counts what became of its calls, by status."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc

from selvage.v1 import embedding_pb2, ranking_pb2
from selvage.v1 import vectors_pb2 as v
from shared.server.options import channel_options
from support.mixture import some_call
from support.references import Calls

MEBIBYTE = 1024 * 1024
EMBED, MAX_SIM = "/selvage.v1.EmbeddingService/Embed", "/selvage.v1.RankingService/MaxSim"
REQUEST = embedding_pb2.EmbedRequest(texts=["w1 w2 w3"])

Client = Callable[[str, Counter[str], random.Random], Coroutine[Any, Any, None]]


async def cancels(address: str, outcomes: Counter[str], generator: random.Random) -> None:
    """Begins calls of every kind and gives them up at any moment, or goes away with all of them."""
    while True:
        async with grpc.aio.insecure_channel(address) as channel:
            calls = Calls(channel)
            begun = []
            for _ in range(10):
                method, request = some_call(calls, generator, sparse=True)
                begun.append(method(request, timeout=60))
                await asyncio.sleep(generator.uniform(0, 0.02))
                if generator.random() < 0.5:
                    generator.choice(begun).cancel()
        for call in begun:  # the channel is closed
            outcomes[(await call.code()).name] += 1
        await asyncio.sleep(0.2)


async def resets(address: str, outcomes: Counter[str], generator: random.Random) -> None:
    """Opens calls by the hundred, and resets each at once, or as soon as it may be on its way."""
    async with grpc.aio.insecure_channel(address) as channel:
        calls = Calls(channel)
        while True:
            for number in range(300):
                call = calls.embedding.Embed(REQUEST, timeout=60)
                if number % 2:
                    await asyncio.sleep(0)
                call.cancel()
                outcomes[(await call.code()).name] += 1
            await asyncio.sleep(generator.uniform(0.5, 1))


async def reads_slowly(address: str, outcomes: Counter[str], generator: random.Random) -> None:
    """Asks for four megabytes, and reads the first byte after a while."""
    sides = [v.MultiVectors(dimensions=1, lengths=[1] * count, data=bytes(4 * count)) for count in (250, 4000)]
    request = ranking_pb2.MaxSimRequest(queries=sides[0], documents=sides[1]).SerializeToString()
    options = [*channel_options(), ("grpc.http2.lookahead_bytes", 65_536), ("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        method = channel.stream_stream(MAX_SIM)  # on the wire a unary call, but nothing is read before it is asked for
        while True:
            call = method(timeout=60)
            try:
                await call.write(request)
                await call.done_writing()
                await asyncio.sleep(generator.uniform(1, 3))
                reply = await call.read()
                assert reply is grpc.aio.EOF or len(ranking_pb2.MaxSimResponse.FromString(reply).scores) == 1_000_000
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass  # refused, maybe before it was written
            outcomes[(await call.code()).name] += 1


async def sends_giants(address: str, outcomes: Counter[str], generator: random.Random) -> None:
    """15 MiB in a request that is over the limits, now and then."""
    message = embedding_pb2.EmbedRequest(texts=["w1 w2 " * 2500] * 1048).SerializeToString()
    async with grpc.aio.insecure_channel(address, options=channel_options()) as channel:
        method = channel.unary_unary(EMBED)
        while True:
            outcomes[(await method(message, timeout=60).code()).name] += 1
            await asyncio.sleep(generator.uniform(2, 4))


CLIENTS: list[Client] = [cancels, resets, reads_slowly, sends_giants]


@asynccontextmanager
async def mischief(address: str, seed: int) -> AsyncIterator[dict[str, Counter[str]]]:
    """All of them at once; what became of their calls, by client. Raises what a client of ours did wrong."""
    found: dict[str, Counter[str]] = {client.__name__: Counter() for client in CLIENTS}
    generator = random.Random(seed)
    tasks = [asyncio.create_task(client(address, found[client.__name__], generator)) for client in CLIENTS]
    try:
        yield found
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    wrong = [each for each in ended if not isinstance(each, asyncio.CancelledError)]
    assert wrong == []

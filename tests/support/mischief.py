"""Calls of every kind at random, and clients that misbehave without end; each counts what became of its calls."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc

from selvage.v1 import embedding_pb2, model_pb2, ranking_pb2
from selvage.v1 import vectors_pb2 as v
from shared.server.options import channel_options
from support.references import Calls

MEBIBYTE = 1024 * 1024
EMBED, MAX_SIM = "/selvage.v1.EmbeddingService/Embed", "/selvage.v1.RankingService/MaxSim"
REQUEST = embedding_pb2.EmbedRequest(texts=["w1 w2 w3"])

OUTPUTS = [v.OUTPUT_KIND_DENSE, v.OUTPUT_KIND_MULTI_VECTOR]
METHODS = [v.SCORING_METHOD_DENSE, v.SCORING_METHOD_LATE_INTERACTION]
"""What tiny-bert has; tiny-bge-m3 has SPARSE and HYBRID as well."""


def text(generator: random.Random, longest: int = 60) -> str:
    return " ".join(f"w{generator.randrange(800)}" for _ in range(generator.randrange(longest)))


def some_call(calls: Calls, generator: random.Random, *, sparse: bool = False) -> tuple[Any, Any]:
    """A method and a request. `sparse`: whether the model has sparse vectors."""
    texts = [text(generator) for _ in range(generator.randint(1, 30))]
    kind = generator.randrange(10)
    outputs = [*OUTPUTS, v.OUTPUT_KIND_SPARSE] if sparse else OUTPUTS
    methods = [*METHODS, v.SCORING_METHOD_SPARSE, v.SCORING_METHOD_HYBRID] if sparse else METHODS
    if kind < 4:
        chosen = generator.sample(outputs, generator.randint(1, len(outputs)))
        options = {"data_type": generator.randrange(6), "dimensions": generator.randint(1, 64)}
        return calls.embedding.Embed, embedding_pb2.EmbedRequest(texts=texts, outputs=chosen, **options)
    if kind < 6:
        method = generator.choice(methods)
        return calls.ranking.Rerank, ranking_pb2.RerankRequest(query=texts[0], documents=texts, method=method)
    if kind < 8:
        layout = generator.choice([v.LAYOUT_PAIRS, v.LAYOUT_MATRIX])
        return calls.ranking.Score, ranking_pb2.ScoreRequest(queries=texts, documents=texts, layout=layout, method=2)
    if kind < 9:
        if generator.random() < 0.3:
            return calls.model.Tokenize, model_pb2.TokenizeRequest(texts=texts)
        side = v.MultiVectors(dimensions=4, lengths=[3, 2], data=bytes(80))
        return calls.ranking.MaxSim, ranking_pb2.MaxSimRequest(queries=side, documents=side)
    return calls.embedding.Embed, embedding_pb2.EmbedRequest(texts=["w1 " * 700])


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

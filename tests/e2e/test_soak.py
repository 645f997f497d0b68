"""Hundreds of mixed calls, some of them abandoned, some of them wrong: each ends, and nothing is left behind."""

import asyncio
import random
from collections import Counter
from typing import Any

from references import Calls, eventually, load_of

from harness.stack import stack
from selvage.v1 import embedding_pb2, model_pb2, ranking_pb2
from selvage.v1 import vectors_pb2 as v

CALLS = 400


def text(generator: random.Random, longest: int = 60) -> str:
    return " ".join(f"w{generator.randrange(800)}" for _ in range(generator.randrange(longest)))


def some_call(calls: Calls, generator: random.Random) -> tuple[Any, Any]:
    """A method and a request; one in ten is refused."""
    texts = [text(generator) for _ in range(generator.randint(1, 30))]
    kind = generator.randrange(10)
    if kind < 4:
        outputs = generator.sample([v.OUTPUT_KIND_DENSE, v.OUTPUT_KIND_MULTI_VECTOR], generator.randint(1, 2))
        options = {"data_type": generator.randrange(6), "dimensions": generator.randint(1, 64)}
        return calls.embedding.Embed, embedding_pb2.EmbedRequest(texts=texts, outputs=outputs, **options)
    if kind < 6:
        method = generator.choice([v.SCORING_METHOD_DENSE, v.SCORING_METHOD_LATE_INTERACTION])
        return calls.ranking.Rerank, ranking_pb2.RerankRequest(query=texts[0], documents=texts, method=method)
    if kind < 8:
        layout = generator.choice([v.LAYOUT_PAIRS, v.LAYOUT_MATRIX])
        return calls.ranking.Score, ranking_pb2.ScoreRequest(queries=texts, documents=texts, layout=layout, method=2)
    if kind < 9:
        side = v.MultiVectors(dimensions=4, lengths=[3, 2], data=bytes(80))
        return calls.ranking.MaxSim, ranking_pb2.MaxSimRequest(queries=side, documents=side)
    return calls.embedding.Embed, embedding_pb2.EmbedRequest(texts=["w1 " * 700])


async def test_every_call_ends_and_nothing_is_left_behind() -> None:
    """Answered, refused, out of time or cancelled; then the queue is empty and the services as good as new."""
    generator, outcomes = random.Random(11), Counter()

    async def one(calls: Calls) -> None:
        method, request = some_call(calls, generator)
        impatient = generator.random() < 0.2
        call = method(request, timeout=generator.uniform(0.001, 0.2) if impatient else 120)
        if generator.random() < 0.1:
            asyncio.get_running_loop().call_later(generator.uniform(0, 0.05), call.cancel)
        outcomes[(await call.code()).name] += 1

    async with stack("random:tiny-bert", frontends=2) as pair:
        clients = [Calls(channel) for channel in pair.channels]
        gate = asyncio.Semaphore(32)

        async def paced(number: int) -> None:
            async with gate:
                await one(clients[number % 2])

        await asyncio.gather(*(paced(number) for number in range(CALLS)))

        async def empty() -> bool:
            load = await load_of(pair)
            return (load.queued_tokens, load.queued_jobs) == (0, 0)

        await eventually(empty)
        await clients[0].model.GetModel(model_pb2.GetModelRequest())
        bugs = [line for member in pair.members for line in member.log if '"bug"' in line or "failed" in line]
    assert bugs == []
    assert sum(outcomes.values()) == CALLS
    impatient = {"DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED"}  # the last: told that there is no time
    assert set(outcomes) <= {"OK", "INVALID_ARGUMENT"} | impatient
    assert outcomes["OK"] > CALLS / 2

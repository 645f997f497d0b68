"""EmbedStream between real processes: the rows of Embed, out of order, whatever callers do."""

import asyncio
from typing import Any

import grpc
import numpy as np

from harness.stack import Stack
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedStreamRequest
from selvage.v1.vectors_pb2 import OUTPUT_KIND_MULTI_VECTOR
from support.references import Calls, dense, eventually

TEXTS = [f"w{number} w{number * 7 % 90} " * (1 + number % 9) for number in range(300)]


def batches(size: int, repeat: int = 1, **options: Any) -> list[EmbedStreamRequest]:
    """All texts, so many a batch; the id is the place of the first."""
    places = range(0, len(TEXTS), size)
    return [
        EmbedStreamRequest(id=place, request=EmbedRequest(texts=TEXTS[place : place + size], **options))
        for _ in range(repeat)
        for place in places
    ]


async def test_the_rows_are_those_of_embed(tiny: Stack) -> None:
    """Whatever the size of the batches, each answered once."""
    calls = Calls(tiny.channel)
    expected = dense(await calls.embedding.Embed(EmbedRequest(texts=TEXTS)))
    for size in (1, 7, 300):
        found = {}
        async for reply in calls.embedding.EmbedStream(iter(batches(size))):
            assert reply.id not in found
            found[reply.id] = dense(reply.response)
        assert np.abs(np.concatenate([found[place] for place in sorted(found)]) - expected).max() < 1e-5


async def test_a_caller_writes_and_reads_in_turn(tiny: Stack) -> None:
    """Replies come while the stream is open, and it ends with OK once nothing more is written."""
    call = Calls(tiny.channel).embedding.EmbedStream()
    for each in batches(100):
        await call.write(each)
        assert (await call.read()).id == each.id
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_a_slow_reader_holds_back_only_itself(tiny: Stack) -> None:
    """It is read from no more, others are answered meanwhile, and it loses nothing in the end.

    Rows of tokens: they fill what may wait for a reader with fewer texts.
    """
    calls = Calls(tiny.channel)
    slow = calls.embedding.EmbedStream()
    asked, written = batches(10, repeat=30, outputs=[OUTPUT_KIND_MULTI_VECTOR]), 0

    async def write() -> None:
        nonlocal written
        for each in asked:
            await slow.write(each)
            written += 1
        await slow.done_writing()

    writing = asyncio.create_task(write())

    async def stands() -> bool:
        before = written
        await asyncio.sleep(0.25)
        return written == before

    await eventually(stands)
    assert written < len(asked)
    assert dense(await calls.embedding.Embed(EmbedRequest(texts=["w1"]), timeout=240)).shape[0] == 1
    seen = [reply.id async for reply in slow]
    await writing
    assert len(seen) == len(asked)

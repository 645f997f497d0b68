"""Token rows of one long text between real processes: they come as they are computed, and nobody holds all of them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest

from harness.stack import Stack, stack
from selvage import Client
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedStreamRequest, EmbedStreamResponse, TokenIds
from selvage.v1.vectors_pb2 import OUTPUT_KIND_MULTI_VECTOR
from shared.jobs import Job
from shared.ragged import RaggedTokens
from shared.vectors import OutputKind
from support.random_models import random_model
from support.references import Calls, attached, eventually, load_of, multi_vectors
from support.scraping import forget_peak, memory
from support.tiny import encode, random_ids, token_rows

MEBIBYTE, WIDTH = 1024 * 1024, 1024
LENGTH, LONG = 5000, 100_000
MODEL = "long-wide-qwen3"


@pytest.fixture(scope="module")
async def wide(nursery: object) -> AsyncIterator[Stack]:
    """Rows of 4 KiB; steps of four pieces."""
    flags = {"step-tokens": 256, "chunk-tokens": 64, "max-tokens": LENGTH}
    async with stack(random_model(MODEL), worker=flags) as running:
        yield running


def request(ids: list[int]) -> EmbedRequest:
    return EmbedRequest(tokenized=[TokenIds(ids=ids)], outputs=[OUTPUT_KIND_MULTI_VECTOR])


def stream(pair: Stack, ids: list[int], seconds: float = 240) -> Any:
    """A stream with one batch of one text, to be read."""
    batch = EmbedStreamRequest(id=7, request=request(ids), rows_in_parts=True)
    return Calls(pair.channel).embedding.EmbedStream(iter([batch]), timeout=seconds)


def rows_in(reply: EmbedStreamResponse) -> np.ndarray:
    assert reply.WhichOneof("outcome") == "response", reply.error
    [rows] = multi_vectors(reply.response)
    return rows


async def test_rows_leave_the_worker_before_the_text_is_done(wide: Stack) -> None:
    """The messages that carry them say that the job is not done; at the end they are the rows of a whole run."""
    [ids], kind = random_ids([LENGTH]), OutputKind.MULTI_VECTOR
    early = 0
    async with attached(wide.worker.address) as link:
        await link.ask(Job(id=1, work=encode(kind, token_ids=True, in_parts=True), tokens=RaggedTokens.of([ids])))
        ended = False
        while not ended:
            message = await link.call.read()
            for part in message.answers:
                ended = link.parts[1].add(part)
                early += 0 if ended else sum(len(chunk.data) for chunk in part.chunks) * (message.load.queued_jobs == 1)
        found = link.parts.pop(1).result()
        await link.ask(Job(id=2, work=encode(kind, token_ids=True), tokens=RaggedTokens.of([ids])))
        expected = (await link.answers(1))[2]
    assert early > 0  # how many depends on how fast this reads
    assert (found.row_lengths, found.token_ids) == (expected.row_lengths, expected.token_ids)
    assert np.abs(token_rows(found)[0] - token_rows(expected)[0]).max() < 1e-5


async def test_the_rows_are_those_of_embed(wide: Stack) -> None:
    """Over both services, in replies that follow each other; the client joins them."""
    [ids] = random_ids([LENGTH])
    [expected] = multi_vectors(await Calls(wide.channel).embedding.Embed(request(ids), timeout=240))
    replies = [reply async for reply in stream(wide, ids)]
    assert len(replies) > 10
    assert [reply.more for reply in replies] == [True] * (len(replies) - 1) + [False]
    parts = [rows_in(reply) for reply in replies]
    assert [reply.first_row for reply in replies] == np.cumsum([0, *map(len, parts[:-1])]).tolist()
    assert np.abs(np.concatenate(parts) - expected).max() < 1e-5
    assert list(replies[-1].response.usage.token_counts) == [LENGTH]
    with Client(wide.frontends[0].address) as client:
        short, rows = client.embed_stream(iter([ids[:50], ids]), output="multi_vector")
        assert np.abs(short - expected[:50]).max() < 1e-5
        assert np.abs(rows - expected).max() < 1e-5


async def test_a_caller_that_goes_away_frees_the_worker(wide: Stack) -> None:
    """In the middle of a text."""
    call = stream(wide, random_ids([LENGTH])[0])
    assert len(rows_in(await call.read()))
    call.cancel()
    await eventually(lambda: _idle(wide))


async def _idle(pair: Stack) -> bool:
    return (await load_of(pair)).queued_jobs == 0


@pytest.mark.slow
async def test_100000_tokens_in_300_mebibytes() -> None:
    """Rows of 410 MB, whether they are read at once or not at all. In one reply they are refused on arrival, before
    anything is computed, with the way to get them."""
    [ids] = random_ids([LONG])
    async with stack(random_model(MODEL), worker={"step-tokens": 2048}) as pair:
        async for _ in stream(pair, ids[:8192]):
            pass  # what any text takes
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await Calls(pair.channel).embedding.Embed(request(ids), timeout=240)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        details = refused.value.details() or ""
        assert f"at most {64 * MEBIBYTE}" in details
        assert "EmbedStream" in details
        idle = [memory(member) for member in pair.members]
        for member in pair.members:
            forget_peak(member)
        call, count, some = stream(pair, ids, 600), 0, list[np.ndarray]()
        while (reply := await call.read()) is not grpc.aio.EOF:
            rows = rows_in(reply)
            some.append(rows[-1].copy())
            if not count:
                await _until_it_stands(pair)
            count += len(rows)
        taken = [memory(member, "VmHWM") - before for member, before in zip(pair.members, idle, strict=True)]
        assert count == LONG
        assert max(taken) < 300 * MEBIBYTE, taken
        assert await _idle(pair)
        work = encode(OutputKind.MULTI_VECTOR)
        async with attached(pair.worker.address) as link:
            await link.ask(Job(id=1, work=work, tokens=RaggedTokens.of([ids])))
            [expected] = token_rows((await link.answers(1))[1])
        places = [*range(255, LONG, 256), LONG - 1]  # the last rows of replies of a mebibyte
        assert np.abs(np.stack(some) - expected[places]).max() < 1e-5


async def _until_it_stands(pair: Stack) -> None:
    """Returns when the worker computes nothing more of a text whose rows nobody reads, long before its end."""
    seen = [-2, -1]
    while seen[-1] != seen[-2]:
        await asyncio.sleep(1.0)
        seen.append((await load_of(pair)).queued_tokens)
    assert seen[-1] > LONG // 2

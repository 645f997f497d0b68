"""Members that die, come back, or are told to stop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import aiohttp
import grpc
import numpy as np
import pytest

from harness.stack import stack
from selvage import AsyncClient
from selvage.v1 import embedding_pb2
from shared.jobs import Encode, Job, RaggedTokens
from shared.vectors import OutputKind
from support.forked import ENDS_AS_PYTHON
from support.http_calls import APIS
from support.random_models import random_model
from support.references import Calls, attached, dense, eventually, near, refusal, until_queued
from support.traffic import traffic

TINY = "tiny-bert"
TEXTS = 60
"""Whose token rows, 7 MiB, are far more than what a connection holds."""
REQUEST = embedding_pb2.EmbedRequest(texts=["w1 w2 w3", "w4"])


async def test_a_killed_worker_comes_back_with_its_model_and_with_another() -> None:
    """In between every call gets UNAVAILABLE at once, though it would wait a minute; service resumes by itself. Another
    model is served under its own name, and that of the first one is unknown from then on."""
    async with stack(random_model(TINY)) as pair:
        calls = Calls(pair.channel)
        async with traffic(pair.channel) as running:
            await running.more(20)
            await pair.worker.kill()
            await eventually(lambda: running.outcomes["UNAVAILABLE"] >= 20)
            await pair.worker.restart()
            await running.more(20)
        assert set(running.outcomes) == {"OK", "UNAVAILABLE"}
        assert running.wrong == []
        await pair.worker.kill()
        pair.worker.arguments["model"] = random_model("tiny-roberta")
        await pair.worker.restart()
        await pair.worker.wait_ready()
        await pair.frontends[0].wait_ready()
        assert (await calls.embedding.Embed(REQUEST)).model == "tiny-roberta"
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=["w1"], model="tiny-bert"))
    assert refusal(raised.value)[:2] == ("NOT_FOUND", "UNKNOWN_MODEL")


async def test_stopping_one_of_two_frontends_loses_no_call(
    monkeypatch: pytest.MonkeyPatch, session: aiohttp.ClientSession
) -> None:
    """A client that balances over both sees no failed call, and an open stream goes on at the other; by HTTP health
    says no before the port closes. The process ends as every Python does."""
    monkeypatch.setenv(ENDS_AS_PYTHON, "1")
    stopping: list[asyncio.Task[int]] = []
    statuses: set[int] = set()

    async def source() -> AsyncIterator[str]:
        for place in range(1000):
            if place == 300:
                stopping.append(asyncio.create_task(pair.frontends[0].stop()))
            yield f"w{place % 90} w{place * 7 % 90}"

    async def watch(url: str) -> None:
        with suppress(aiohttp.ClientError):  # the port is closed
            while True:
                async with session.get(f"{url}/health") as reply:
                    statuses.add(reply.status)
                await asyncio.sleep(0.05)

    async with (
        stack(random_model(TINY), frontends=2, frontend=APIS) as pair,
        pair.balanced_channel() as channel,
        AsyncClient("ipv4:" + ",".join(each.address for each in pair.frontends), timeout=240) as client,
        traffic(channel) as running,
    ):
        watching = asyncio.create_task(watch(pair.frontends[0].http_url))
        await running.more(50)
        rows = [row async for row in client.embed_stream(source(), batch_size=10)]
        expected = await client.embed([f"w{place % 90} w{place * 7 % 90}" for place in range(1000)])
        assert await stopping[0] == 0
        await watching
        await running.more(50)
    near(np.stack(rows), expected, 1e-6)
    assert set(running.outcomes) == {"OK"}
    assert running.wrong == []
    assert statuses == {200, 503}


async def test_a_worker_refuses_what_is_too_much_and_drains_what_it_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """OVERLOADED with the pushback trailer in the middle of a long request. SIGTERM then: the request is answered in
    full, and the process ends with 0, by Python's own end as well."""
    monkeypatch.setenv(ENDS_AS_PYTHON, "1")
    async with stack(random_model(TINY), worker={"queue-seconds": 0.01}) as pair:
        calls = Calls(pair.channel)
        texts = [" ".join(f"w{(index + each) % 800}" for each in range(300)) for index in range(150)]
        expected = dense(await calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=texts[-1:])))
        long = asyncio.ensure_future(calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=texts), timeout=240))
        await until_queued(pair)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=texts))
        assert refusal(raised.value)[:2] == ("RESOURCE_EXHAUSTED", "OVERLOADED")
        assert int(dict(raised.value.trailing_metadata())["grpc-retry-pushback-ms"]) >= 100
        assert await pair.worker.stop() == 0
        assert abs(dense(await long)[-1] - expected[0]).max() < 1e-6
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await calls.embedding.Embed(REQUEST)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_draining_worker_waits_for_slow_readers() -> None:
    """A large result that its frontend takes slowly is delivered whole, however long ago it was computed."""
    async with stack(random_model("tiny-bert")) as pair, attached(pair.worker.address) as link:
        tokens = RaggedTokens.of([[5] * 500] * TEXTS)
        work = Encode(outputs=frozenset({OutputKind.MULTI_VECTOR}), normalize=True, normalize_tokens=True)
        await link.ask(Job(id=1, work=work, tokens=tokens))
        while not link.parts:
            await link.read()
        stopping = asyncio.create_task(pair.worker.stop())
        await eventually(lambda: any("draining" in line for line in pair.worker.log))
        await asyncio.wait([stopping], timeout=0.5)
        rows = (await link.answers(1))[1].tokens
        assert rows is not None
        assert len(rows.data) == TEXTS * 500 * 64 * 4
        assert await stopping == 0

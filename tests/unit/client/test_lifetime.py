"""How calls of both clients end before they are done: cancelled, closed, given up."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from selvage import AsyncClient, Client, errors
from shared import errors as served
from support.fake_frontend import KINDS, FakeFrontend, answer_batch, connected, texts

MANY = texts(1300)


@pytest.fixture
def fake() -> Iterator[FakeFrontend]:
    with FakeFrontend() as running:
        yield running


async def eventually(condition: Callable[[], bool]) -> None:
    """Returns once it holds; the frontend's threads tell nobody."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_cancelling_a_task_ends_its_calls(fake: FakeFrontend) -> None:
    """The frontend hears of it."""
    fake.seconds = 0.2
    async with AsyncClient(fake.address) as client:
        asking = asyncio.ensure_future(client.embed(MANY))
        await eventually(lambda: fake.at_once == 3)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await eventually(lambda: fake.cancelled == 3)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_of_one_part_ends_the_others(fake: FakeFrontend, kind: str) -> None:
    """They are not waited for."""
    fake.seconds = 0.2
    fake.refusals.append(served.Internal("a bug"))
    async with connected(kind, fake.address, in_flight=2) as client:
        with pytest.raises(errors.Internal):
            await client.embed(MANY)
        assert len(fake.asked) <= 3
        await eventually(lambda: fake.cancelled == len(fake.asked) - 1)


async def test_closing_ends_calls_that_are_under_way(fake: FakeFrontend) -> None:
    """With an error that says so: nobody cancelled the task."""
    fake.seconds = 1.0
    client = AsyncClient(fake.address)
    asking = asyncio.ensure_future(client.embed(MANY))
    await eventually(lambda: fake.at_once > 0)
    await client.close()
    with pytest.raises(errors.Cancelled, match="closed"):
        await asking
    blocking = Client(fake.address)
    waiting = asyncio.ensure_future(asyncio.to_thread(blocking.embed, MANY))
    await eventually(lambda: len(fake.asked) > 3)
    blocking.close()
    with pytest.raises(errors.Cancelled):
        await waiting


@pytest.mark.parametrize("kind", KINDS)
async def test_a_closed_client_says_so(fake: FakeFrontend, kind: str) -> None:
    """By every method."""
    async with connected(kind, fake.address) as client:
        await client.embed("a")
    with pytest.raises(errors.Cancelled, match="the client was closed"):
        await client.embed("a")
    with pytest.raises(errors.Cancelled, match="the client was closed"):
        await client.stream(["a"])


async def test_a_cancellation_that_comes_while_a_stream_ends_is_not_lost(fake: FakeFrontend) -> None:
    """A timeout around the loop, for example."""

    def never_ending(requests: Iterator[Any], _: int) -> Iterator[Any]:
        yield from map(answer_batch, requests)
        threading.Event().wait(3)

    fake.stream = never_ending
    async with AsyncClient(fake.address) as client:

        async def all_of_it() -> None:
            async for _ in client.embed_stream(MANY):
                pass

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(all_of_it(), 0.5)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_that_is_given_up_ends(fake: FakeFrontend, kind: str) -> None:
    """Its call and its thread too."""
    ended = threading.Event()

    def watched(requests: Iterator[Any], _: int) -> Iterator[Any]:
        try:
            yield from map(answer_batch, requests)
        finally:
            ended.set()

    fake.stream = watched
    async with connected(kind, fake.address) as client:
        stream = client.client.embed_stream(MANY, batch_size=1)
        if isinstance(stream, Iterator):
            next(stream)
            stream.close()
        else:
            await anext(stream)
            await stream.aclose()
        await eventually(ended.is_set)
        await eventually(lambda: not any(each.name == "selvage-stream" for each in threading.enumerate()))


async def test_threads_share_a_client(fake: FakeFrontend) -> None:
    """Each gets its own answers."""
    fake.seconds = 0.01
    with Client(fake.address) as client:
        found = await asyncio.gather(*(asyncio.to_thread(client.tokenize, MANY[start::8]) for start in range(8)))
    assert [["".join(text.tokens) for text in each] for each in found] == [MANY[start::8] for start in range(8)]

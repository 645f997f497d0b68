"""How calls of both clients end before they are done: cancelled, closed, given up."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from selvage import AsyncClient, Client, errors
from shared import errors as served
from support.fake_frontend import KINDS, FakeFrontend, answer_batch, connected, texts
from support.references import eventually

MANY = texts(1300)


@pytest.fixture
def fake() -> Iterator[FakeFrontend]:
    with FakeFrontend() as running:
        yield running


async def test_cancelling_a_task_ends_its_calls(fake: FakeFrontend) -> None:
    """The frontend hears of it."""
    fake.holds = True
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
    fake.holds = True
    fake.refusals.append(served.Internal("a bug"))
    async with connected(kind, fake.address, in_flight=2) as client:
        with pytest.raises(errors.Internal):
            await client.embed(MANY)
        assert len(fake.asked) <= 3
        await eventually(lambda: fake.cancelled == len(fake.asked) - 1)


async def test_closing_ends_calls_that_are_under_way(fake: FakeFrontend) -> None:
    """With an error that says so: nobody cancelled the task."""
    fake.holds = True
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
    over = threading.Event()

    def never_ending(requests: Iterator[Any], _: int) -> Iterator[Any]:
        yield from map(answer_batch, requests)
        over.wait()

    fake.stream = never_ending
    async with AsyncClient(fake.address) as client:

        async def all_of_it() -> None:
            async for _ in client.embed_stream(MANY):
                pass

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(all_of_it(), 0.5)
    over.set()


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


@contextmanager
def no_call_is_left() -> Iterator[None]:
    """Checks that a block deletes the streams that it opens, without help of the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        yield
        assert not [alive for alive in gc.get_objects() if issubclass(type(alive), grpc.Call)]
    finally:
        gc.enable()


def ending_early(requests: Iterator[Any], _: int) -> Iterator[Any]:
    """Answers one batch, then refuses the stream."""
    yield answer_batch(next(requests))
    raise served.Internal("a bug")


def test_a_blocking_stream_leaves_no_call_behind(fake: FakeFrontend) -> None:
    """Given up, read to its end, or refused: a call that the interpreter's end must delete may never let it end."""
    with Client(fake.address) as client:
        with no_call_is_left():
            for _ in client.embed_stream(MANY, batch_size=1):
                break
        with no_call_is_left():
            assert len(list(client.embed_stream(MANY))) == len(MANY)
        fake.stream = ending_early
        with no_call_is_left(), pytest.raises(errors.Internal) as refused:
            list(client.embed_stream(MANY, batch_size=1))
        assert refused.value.message == "a bug"


async def test_threads_share_a_client(fake: FakeFrontend) -> None:
    """Each gets its own answers."""
    fake.seconds = 0.01
    with Client(fake.address) as client:
        found = await asyncio.gather(*(asyncio.to_thread(client.tokenize, MANY[start::8]) for start in range(8)))
    assert [["".join(text.tokens) for text in each] for each in found] == [MANY[start::8] for start in range(8)]

"""`embed_stream` of both clients against scripted streams: order, ends, refusals, what is read ahead."""

import threading
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest

from selvage import errors
from selvage.calls import methods, streamed_call
from selvage.v1.embedding_pb2 import EmbedStreamResponse, StreamError
from shared import errors as served
from support.fake_frontend import KINDS, FakeFrontend, answer_batch, connected, dense_row, embed, sparse_row, texts

pytestmark = pytest.mark.parametrize("kind", KINDS)
MANY = texts(768)
EXPECTED = np.stack([dense_row(each) for each in MANY])


def backwards(requests: Iterator[Any], _: int) -> Iterator[Any]:
    """Answers four batches at a time, the last first; there are as many as make up fours."""
    waiting: list[Any] = []
    for each in requests:
        waiting.append(each)
        if len(waiting) == 4:
            yield from map(answer_batch, reversed(waiting))
            waiting = []


def in_halves(requests: Iterator[Any], _: int) -> Iterator[Any]:
    """Answers each batch in two parts."""
    for each in requests:
        reply, middle = embed(each.request), len(each.request.texts) // 2
        for start, stop, more in ((0, middle, True), (middle, len(each.request.texts), False)):
            part = EmbedStreamResponse(id=each.id, start=start, more=more)
            part.response.CopyFrom(reply)
            part.response.dense.data = reply.dense.data[start * 12 : stop * 12]
            part.response.dense.count = stop - start
            yield part


async def test_vectors_come_in_the_order_of_the_texts(fake: FakeFrontend, kind: str) -> None:
    """However the batches are answered, and whatever is asked for."""
    async with connected(kind, fake.address) as client:
        for fake.stream in (backwards, in_halves):
            assert np.array_equal(np.stack(await client.stream(iter(MANY))), EXPECTED)
        fake.stream = backwards
        assert await client.stream(MANY, output="sparse", batch_size=8) == [sparse_row(each) for each in MANY]
        rows = await client.stream(MANY, output="multi_vector")
        assert [each.shape for each in rows] == [(min(len(each), 5), 3) for each in MANY]
        ids = [[number, 5] for number in range(200)]
        assert np.array_equal(await client.stream(ids), [dense_row(each) for each in ids])
        assert await client.stream([]) == []


async def test_what_has_no_reply_goes_into_another_stream(fake: FakeFrontend, kind: str) -> None:
    """A stream that ends after its time, again and again, loses and doubles nothing."""

    def ending(requests: Iterator[Any], _: int) -> Iterator[Any]:
        yield answer_batch(next(requests))
        next(requests, None)
        raise served.WorkerUnavailable("the stream is 540 s old; go on in another one", retry_after=0.0)

    fake.stream = ending
    async with connected(kind, fake.address) as client:
        assert np.array_equal(np.stack(await client.stream(MANY)), EXPECTED)
    assert fake.streams >= 10


async def test_half_of_a_batch_counts_for_nothing(fake: FakeFrontend, kind: str) -> None:
    """Its parts come anew from the next stream."""

    def broken(requests: Iterator[Any], number: int) -> Iterator[Any]:
        halves = in_halves(requests, number)
        yield next(halves)
        if number == 0:
            raise served.WorkerUnavailable("draining", retry_after=0.0)
        yield from halves

    fake.stream = broken
    async with connected(kind, fake.address) as client:
        assert np.array_equal(np.stack(await client.stream(MANY)), EXPECTED)


async def test_a_refused_batch_is_sent_again(fake: FakeFrontend, kind: str) -> None:
    """Through the same stream, when it was told."""
    refused: set[int] = set()

    def refusing(requests: Iterator[Any], _: int) -> Iterator[Any]:
        for each in requests:
            if each.id % 3 == 0 and each.id not in refused:
                refused.add(each.id)
                error = StreamError(code=8, reason="OVERLOADED", message="full")
                error.retry_after.FromMilliseconds(50)
                yield EmbedStreamResponse(id=each.id, error=error)
            else:
                yield answer_batch(each)

    fake.stream = refusing
    async with connected(kind, fake.address) as client:
        assert np.array_equal(np.stack(await client.stream(MANY)), EXPECTED)
    assert len(refused) > 2
    assert fake.streams == 1


async def test_a_bad_text_is_named_by_its_place_in_all_texts(fake: FakeFrontend, kind: str) -> None:
    """What was before it has come."""

    def refusing(requests: Iterator[Any], _: int) -> Iterator[Any]:
        for each in requests:
            if each.id == 3:
                told = StreamError(code=3, reason="INPUT_TOO_LONG", message="texts[2] is long", field="texts[2]")
                yield EmbedStreamResponse(id=each.id, error=told)
            else:
                yield answer_batch(each)

    fake.stream = refusing
    async with connected(kind, fake.address) as client:
        with pytest.raises(errors.InputTooLong, match=r"texts\[32\] is long") as raised:
            await client.stream(MANY, batch_size=10)
        assert raised.value.field == "texts[32]"
        with pytest.raises(errors.InvalidInput) as raised_here:
            await client.stream([*MANY[:64], 5])
        assert raised_here.value.field == "texts[64]"
        with pytest.raises(errors.InvalidInput):
            await client.stream(MANY, batch_size=0)


async def test_streams_that_bring_nothing_are_given_up(fake: FakeFrontend, kind: str) -> None:
    """After as many tries as a call has."""

    def gone(requests: Iterator[Any], _: int) -> Iterator[Any]:
        next(requests)
        raise served.WorkerUnavailable("gone", retry_after=0.01)
        yield

    fake.stream = gone
    async with connected(kind, fake.address, retries=2) as client:
        with pytest.raises(errors.Unavailable):
            await client.stream(MANY)
    assert fake.streams == 3


async def test_a_reply_to_nothing_and_one_of_too_few_rows_are_no_results(fake: FakeFrontend, kind: str) -> None:
    """Results would belong to other texts."""

    def twice(requests: Iterator[Any], _: int) -> Iterator[Any]:
        for each in requests:
            yield from (answer_batch(each), answer_batch(each))

    def short(requests: Iterator[Any], _: int) -> Iterator[Any]:
        reply = answer_batch(next(requests))
        reply.response.dense.data = reply.response.dense.data[12:]
        yield reply

    async with connected(kind, fake.address) as client:
        for fake.stream, words in (
            (twice, "a reply [0-9]+, which nothing waits for"),
            (short, "63 results for 64 texts"),
        ):
            with pytest.raises(errors.Internal, match=words):
                await client.stream(MANY)


async def test_a_refused_stream_tells_why(fake: FakeFrontend, kind: str) -> None:
    """Every time: what is written to a call that has just ended must not hide its status."""
    fake.refusals += [served.Unauthenticated("the API key is not known")] * 100
    async with connected(kind, fake.address, retries=0) as client:
        for _ in range(100):
            with pytest.raises(errors.Denied, match="API key"):
                await client.stream(["a", "b", "c"], batch_size=1)


async def test_an_endless_input_is_read_a_little_ahead(fake: FakeFrontend, kind: str) -> None:
    """As far as the window goes; whoever stops reading ends the stream."""
    ended = threading.Event()
    read = 0

    def watched(requests: Iterator[Any], _: int) -> Iterator[Any]:
        try:
            yield from map(answer_batch, requests)
        finally:
            ended.set()

    def endless() -> Iterator[str]:
        nonlocal read
        for number in count():
            read = number + 1
            yield f"text {number}"

    fake.stream = watched
    async with connected(kind, fake.address) as client:
        source = client.client.embed_stream(endless(), batch_size=4)
        if isinstance(source, Iterator):
            first = [next(source) for _ in range(50)]
            source.close()
        else:
            first = [await anext(source) for _ in range(50)]
            await source.aclose()
        assert np.array_equal(first, [dense_row(f"text {number}") for number in range(50)])
        assert read <= 50 + 4 * streamed_call.BATCHES_AHEAD
        assert ended.wait(10)


async def test_nobody_waits_once_all_is_handed_on(kind: str) -> None:
    """The end of the texts may come after the last reply."""
    client = KINDS[kind]("127.0.0.1:1")
    streamed = methods.embed_stream(client, [], batch_size=2)
    assert streamed.listen_seconds() == 0
    streamed.add_text("a")
    streamed.add_text("b")
    batch = streamed.next_request()
    assert batch is not None
    streamed.record_reply(answer_batch(batch), "")
    assert len(list(streamed.ready_results())) == 2
    streamed.end_texts()
    assert streamed.done
    assert streamed.listen_seconds() == 0


async def test_an_asynchronous_source(fake: FakeFrontend, kind: str) -> None:
    """For the client that can wait for it; the other one says that it cannot."""

    async def source() -> AsyncIterator[str]:
        for each in MANY:
            yield each

    async with connected(kind, fake.address) as client:
        if kind == "AsyncClient":
            assert np.array_equal(np.stack(await client.stream(source())), EXPECTED)
        else:
            with pytest.raises(TypeError):
                await client.stream(source())

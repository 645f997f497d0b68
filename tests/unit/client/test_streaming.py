"""`embed_stream` of both clients against a frontend whose answers are scripted: order, refusals, what is read ahead."""

from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest

from selvage import errors
from selvage.calls.streamed_call import BATCHES_AHEAD
from shared import errors as served
from support.fake_frontend import KINDS, FakeFrontend, connected, dense_row, sparse_row, texts
from support.references import eventually

pytestmark = pytest.mark.parametrize("kind", KINDS)
MANY = texts(768)
EXPECTED = np.stack([dense_row(text) for text in MANY])


async def take(results: list[Any], most: int, client: Any, source: Any, **options: Any) -> None:
    """Takes the first results of a stream, and closes it. Raises what it raises after fewer."""
    stream = client.client.embed_stream(source, **options)
    if isinstance(stream, Iterator):
        while len(results) < most:
            results.append(next(stream))
        stream.close()
    else:
        while len(results) < most:
            results.append(await anext(stream))
        await stream.aclose()


async def test_vectors_come_in_the_order_of_the_texts(fake: FakeFrontend, kind: str) -> None:
    """Whatever is asked for, though every third batch is refused once, as overload or because a frontend drains."""
    refused = set[str]()

    def refuse(request: Any) -> served.SelvageError | None:
        first = str(request.texts[:1] or request.tokenized[:1])
        if first in refused or len(fake.asked) % 3:
            return None
        refused.add(first)
        kinds = (served.Overloaded("full", retry_after=0.02), served.WorkerUnavailable("draining", retry_after=0.0))
        return kinds[len(refused) % 2]

    fake.refuse = refuse
    async with connected(kind, fake.address) as client:
        assert np.array_equal(np.stack(await client.stream(iter(MANY), batch_size=16)), EXPECTED)
        assert await client.stream(MANY, output="sparse", batch_size=8) == [sparse_row(text) for text in MANY]
        rows = await client.stream(MANY, output="multi_vector")
        assert [len(row) for row in rows] == [min(len(text), 5) for text in MANY]
        ids = [[number, 5] for number in range(200)]
        assert np.array_equal(await client.stream(ids), [dense_row(text) for text in ids])
        assert await client.stream([]) == []
    assert len(refused) > 10


async def test_batches_that_leave_each_other_no_room_wait(fake: FakeFrontend, kind: str) -> None:
    """A refusal beside other batches of the stream is no failure."""
    full = served.Overloaded("others hold the bytes", retry_after=0.01)
    fake.refuse, fake.seconds = lambda _: full if fake.at_once > 2 else None, 0.01
    async with connected(kind, fake.address, retries=0) as client:
        assert np.array_equal(np.stack(await client.stream(MANY)), EXPECTED)


async def test_a_bad_text_is_named_by_its_place_in_all_texts(fake: FakeFrontend, kind: str) -> None:
    """After the results of the batches before it, whether the service or the client refuses it."""

    def refuse(request: Any) -> served.SelvageError | None:
        return served.InputTooLong("texts[2] is long", field="texts[2]") if MANY[32] in request.texts else None

    fake.refuse = refuse
    rows: list[Any] = []
    async with connected(kind, fake.address) as client:
        with pytest.raises(errors.InputTooLong, match=r"texts\[32\] is long") as raised:
            await take(rows, 100, client, MANY, batch_size=10)
        assert (len(rows), raised.value.field) == (30, "texts[32]")
        fake.refuse = lambda _: None
        rows.clear()
        with pytest.raises(errors.InvalidInput) as raised_here:
            await take(rows, 100, client, [*MANY[:64], 5], batch_size=10)
        assert (len(rows), raised_here.value.field) == (60, "texts[64]")


async def test_a_stream_sends_as_much_at_a_time_as_is_taken(fake: FakeFrontend, kind: str) -> None:
    """Batches beyond a limit of the service are not sent again and again."""
    full = served.Overloaded("4 requests at once", retry_after=0.02)
    fake.refuse, fake.seconds = lambda _: full if fake.at_once > 4 else None, 0.02
    async with connected(kind, fake.address) as client:
        await client.stream([f"text {number}" for number in range(400)], batch_size=2)
    assert len(fake.asked) < 2 * 200 + 50


async def test_a_batch_that_is_never_answered_is_given_up(fake: FakeFrontend, kind: str) -> None:
    """After as many tries as a part of a call has."""
    fake.refuse = lambda _: served.WorkerUnavailable("gone", retry_after=0.01)
    async with connected(kind, fake.address, retries=2) as client:
        with pytest.raises(errors.Unavailable):
            await client.stream(MANY[:10])
    assert len(fake.asked) == 3


async def test_an_endless_input_is_read_a_little_ahead(fake: FakeFrontend, kind: str) -> None:
    """As far as the window goes; whoever stops reading cancels what is under way."""
    read, rows = 0, list[Any]()

    def endless() -> Iterator[str]:
        nonlocal read
        for read in count():
            yield f"text {read}"

    def holds(request: Any) -> bool:
        """Answers all but the 51st batch, and the 38th not before the 51st was sent."""
        sent = any("text 200" in earlier.texts for earlier in list(fake.asked))
        return "text 200" in request.texts or ("text 148" in request.texts and not sent)

    fake.holds = holds
    async with connected(kind, fake.address) as client:
        await take(rows, 150, client, endless(), batch_size=4)
        assert np.array_equal(rows, [dense_row(f"text {number}") for number in range(150)])
        assert read <= 150 + 4 * (BATCHES_AHEAD + 1)
        await eventually(lambda: fake.cancelled >= 1)


async def test_an_asynchronous_source(fake: FakeFrontend, kind: str) -> None:
    """For the client that can wait for it; the other one says that it cannot."""

    async def source() -> AsyncIterator[str]:
        for text in MANY:
            yield text

    async with connected(kind, fake.address) as client:
        if kind == "AsyncClient":
            assert np.array_equal(np.stack(await client.stream(source())), EXPECTED)
        else:
            with pytest.raises(TypeError):
                await client.stream(source())

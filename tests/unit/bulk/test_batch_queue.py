"""What becomes of a batch: answered, refused, its bad text found, lost with its stream; and when it is given up."""

import threading
from typing import Any

import pytest

from selvage import errors
from selvage.bulk.batch_queue import BatchQueue, OpenStream
from selvage.bulk.failures import Failed
from selvage.bulk.row_blocks import RowBlock
from selvage.bulk.rows import Row


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


CLOCK = Clock()


def queue_of(rows: int = 4, **options: Any) -> tuple[BatchQueue, RowBlock]:
    """With one block, in batches of two."""
    CLOCK.seconds = 0.0
    made = BatchQueue(**({"batch_size": 2, "letters": 1000, "in_flight": 9, "patience": 60, "clock": CLOCK} | options))
    block = RowBlock(shard=0, rows=[Row(number=i, path="a", line=i, text=f"{9 - i}") for i in range(rows)])
    made.add_block(block)
    return made, block


def answer(
    queue: BatchQueue, stream: OpenStream, batch: Any, *, start: int = 0, stop: int = 99, more: bool = False
) -> None:
    places = batch.places[start:stop]
    queue.record_values(stream, batch.id, start, {"tokens": list(places)}, more=more)


def take(queue: BatchQueue, stream: OpenStream) -> Any:
    batch = queue.next_batch(stream)
    assert batch is not None
    return batch


def test_a_block_comes_back_when_every_row_has_an_outcome() -> None:
    """In whatever order, and parts, they come."""
    queue, block = queue_of()
    stream = OpenStream()
    first, second = take(queue, stream), take(queue, stream)
    answer(queue, stream, second)
    answer(queue, stream, first, stop=1, more=True)
    assert queue.take_oldest_block(0) is None
    answer(queue, stream, first, start=1)
    assert queue.take_oldest_block(0) is block
    assert (block.values["tokens"], queue.answered_texts, queue.open_blocks) == ([0, 1, 2, 3], 4, 0)


def test_what_a_stream_had_goes_into_another_one() -> None:
    """In its order, half answered or not; the lost stream gets nothing more."""
    queue, block = queue_of(6)
    lost, other = OpenStream(), OpenStream()
    first, second = take(queue, lost), take(queue, lost)
    answer(queue, lost, first, stop=1, more=True)
    queue.record_stream_end(lost, errors.Unavailable("gone"))
    assert queue.next_batch(lost) is None
    again = [take(queue, other) for _ in range(3)]
    assert [batch.id for batch in again[:2]] == [first.id, second.id]
    for batch in again:
        answer(queue, other, batch)
    assert queue.take_oldest_block(0) is block
    assert block.values["tokens"] == [0, 1, 2, 3, 4, 5]


def test_a_stream_has_so_many_batches_under_way() -> None:
    """Then it waits for an answer, or for the end."""
    queue, _ = queue_of(in_flight=1)
    stream, taken = OpenStream(), []
    first = take(queue, stream)
    thread = threading.Thread(target=lambda: taken.append(queue.next_batch(stream)))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    answer(queue, stream, first)
    thread.join()
    assert len(taken) == 1
    answer(queue, stream, taken[0])
    queue.close()
    assert queue.next_batch(stream) is None
    assert not queue.wait_for_work()


def test_overload_waits_as_long_as_it_is_told() -> None:
    """Then the same batch goes out again, by whoever comes first."""
    queue, _ = queue_of(2)
    stream, other = OpenStream(), OpenStream()
    batch = take(queue, stream)
    queue.record_refusal(stream, batch.id, errors.Overloaded("full", retry_after=3.0), whole=True)
    assert stream.resume == 3.0
    assert take(queue, other).id == batch.id


@pytest.mark.parametrize("rows", [2, 8])
def test_a_text_that_is_named_is_bad_alone(rows: int) -> None:
    """The others of its batch are sent again, without it."""
    queue, block = queue_of(rows, batch_size=8)
    stream = OpenStream()
    batch = take(queue, stream)
    error = errors.InputTooLong("texts[1] has 602 tokens", field="texts[1]")
    queue.record_refusal(stream, batch.id, error, whole=True)
    rest = take(queue, stream)
    assert list(rest.places) == [batch.places[0], *batch.places[2:]]
    answer(queue, stream, rest)
    assert queue.take_oldest_block(0) is block
    assert [str(each) for each in block.bad_rows()] == ["a:1: INPUT_TOO_LONG: the text has 602 tokens"]


@pytest.mark.parametrize(
    "error", [errors.InputTooLarge("no memory"), errors.ResultTooLarge("x", field="texts[3]"), errors.Overloaded("no")]
)
def test_a_text_that_nobody_names_is_found_by_halves(error: errors.SelvageError) -> None:
    """All others are answered."""
    queue, block = queue_of(8, batch_size=8)
    stream = OpenStream()
    while block.unanswered:
        batch = take(queue, stream)
        if 5 in batch.places:
            queue.record_refusal(stream, batch.id, error, whole=False)
        else:
            answer(queue, stream, batch)
    assert [row.number for row in block.bad_rows()] == [5]
    assert [row.number for row in block.good_rows()[0]] == [0, 1, 2, 3, 4, 6, 7]


@pytest.mark.parametrize(
    "error",
    [
        errors.UnsupportedDimensions("dimensions is 9000", field="dimensions"),
        errors.InvalidInput("what is this"),
        errors.Internal("a bug"),
        errors.LimitExceeded("too long a prompt", field="prompt"),
    ],
)
def test_what_is_wrong_with_every_batch_ends_the_work(error: errors.SelvageError) -> None:
    """It must not make a bad row of each."""
    queue, _ = queue_of()
    stream = OpenStream()
    queue.record_refusal(stream, take(queue, stream).id, error, whole=True)
    with pytest.raises(Failed, match=str(error)):
        queue.take_oldest_block(9)
    assert queue.next_batch(stream) is None


def test_silence_is_borne_so_long() -> None:
    """Counted from the first failure after an answer, over all targets."""
    queue, _ = queue_of(6)
    for seconds in (0, 50, 59):
        CLOCK.seconds = seconds
        queue.record_stream_end(OpenStream(), errors.Unavailable("gone"))
    stream = OpenStream()
    answer(queue, stream, take(queue, stream))
    for seconds in (61, 100, 121):
        CLOCK.seconds = seconds
        queue.record_stream_end(OpenStream(), errors.Unavailable("gone"))
    assert queue.take_oldest_block(0) is None
    CLOCK.seconds = 122
    queue.record_stream_end(OpenStream(), errors.Unavailable("gone away"))
    with pytest.raises(Failed, match="--patience: no target has answered for 60 s; the last one says: gone away"):
        queue.take_oldest_block(0)


def test_idle_hours_are_no_silence() -> None:
    """What ended while there was nothing to send counts no more once there is something again."""
    queue, block = queue_of()
    stream = OpenStream()
    for _ in range(2):
        answer(queue, stream, take(queue, stream))
    assert queue.take_oldest_block(0) is block
    queue.record_stream_end(stream, errors.Unavailable("its time is over"))
    CLOCK.seconds = 3600
    queue.add_block(block)
    queue.record_stream_end(OpenStream(), errors.Unavailable("gone"))
    assert queue.take_oldest_block(0) is None


def test_blocks_are_taken_back_by_who_waits_for_them() -> None:
    """In any order, each by its owner, though they look the same."""
    queue, first = queue_of(2)
    second = RowBlock(shard=0, rows=list(first.rows))
    queue.add_block(second)
    stream = OpenStream()
    one, other = take(queue, stream), take(queue, stream)
    answer(queue, stream, other)
    assert queue.take_block(first, 0) is None
    assert queue.take_block(second, 0) is second
    answer(queue, stream, one)
    assert queue.take_block(first, 0) is first
    assert queue.open_blocks == 0


def test_who_waits_for_a_stream_loses_no_patience() -> None:
    """The service is there: it serves as many streams of this caller as it may."""
    queue, _ = queue_of()
    for seconds in (0, 10_000):
        CLOCK.seconds = seconds
        queue.record_stream_end(OpenStream(), errors.Overloaded("32 open streams"), counts=False)
    assert queue.take_oldest_block(0) is None
    for seconds in (20_000, 30_000):
        CLOCK.seconds = seconds
        queue.record_stream_end(OpenStream(), errors.Unavailable("gone"))
    with pytest.raises(Failed, match="no target has answered"):
        queue.take_oldest_block(0)

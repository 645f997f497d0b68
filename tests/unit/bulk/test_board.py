"""What becomes of a batch: answered, refused, its bad text found, lost with its stream; and when it is given up."""

import threading
from typing import Any

import pytest

from selvage import errors
from selvage.bulk.batch_queue import Board, Session
from selvage.bulk.failures import Failed
from selvage.bulk.row_blocks import Window
from selvage.bulk.rows import Row


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


CLOCK = Clock()


def board(rows: int = 4, **options: Any) -> tuple[Board, Window]:
    """With one window, in batches of two."""
    CLOCK.seconds = 0.0
    made = Board(**({"batch_size": 2, "letters": 1000, "in_flight": 9, "patience": 60, "clock": CLOCK} | options))
    window = Window(shard=0, rows=[Row(number=i, path="a", line=i, text=f"{9 - i}") for i in range(rows)])
    made.add(window)
    return made, window


def answer(on: Board, session: Session, batch: Any, *, start: int = 0, stop: int = 99, more: bool = False) -> None:
    places = batch.places[start:stop]
    on.put(session, batch.id, start, {"tokens": list(places)}, more=more)


def take(on: Board, session: Session) -> Any:
    batch = on.take(session)
    assert batch is not None
    return batch


def test_a_window_comes_back_when_every_row_has_an_outcome() -> None:
    """In whatever order, and parts, they come."""
    on, window = board()
    session = Session()
    first, second = take(on, session), take(on, session)
    answer(on, session, second)
    answer(on, session, first, stop=1, more=True)
    assert on.oldest(0) is None
    answer(on, session, first, start=1)
    assert on.oldest(0) is window
    assert (window.values["tokens"], on.answered, on.open) == ([0, 1, 2, 3], 4, 0)


def test_what_a_stream_had_goes_into_another_one() -> None:
    """In its order, half answered or not; the lost stream gets nothing more."""
    on, window = board(6)
    lost, other = Session(), Session()
    first, second = take(on, lost), take(on, lost)
    answer(on, lost, first, stop=1, more=True)
    on.lost(lost, errors.Unavailable("gone"))
    assert on.take(lost) is None
    again = [take(on, other) for _ in range(3)]
    assert [batch.id for batch in again[:2]] == [first.id, second.id]
    for batch in again:
        answer(on, other, batch)
    assert on.oldest(0) is window
    assert window.values["tokens"] == [0, 1, 2, 3, 4, 5]


def test_a_stream_has_so_many_batches_under_way() -> None:
    """Then it waits for an answer, or for the end."""
    on, _ = board(in_flight=1)
    session, taken = Session(), []
    first = take(on, session)
    thread = threading.Thread(target=lambda: taken.append(on.take(session)))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    answer(on, session, first)
    thread.join(5)
    assert len(taken) == 1
    answer(on, session, taken[0])
    on.close()
    assert on.take(session) is None
    assert not on.has_work()


def test_overload_waits_as_long_as_it_is_told() -> None:
    """Then the same batch goes out again, by whoever comes first."""
    on, _ = board(2)
    session, other = Session(), Session()
    batch = take(on, session)
    on.refused(session, batch.id, errors.Overloaded("full", retry_after=3.0), whole=True)
    assert session.resume == 3.0
    assert take(on, other).id == batch.id


@pytest.mark.parametrize("rows", [2, 8])
def test_a_text_that_is_named_is_bad_alone(rows: int) -> None:
    """The others of its batch are sent again, without it."""
    on, window = board(rows, batch_size=8)
    session = Session()
    batch = take(on, session)
    error = errors.InputTooLong("texts[1] has 602 tokens", field="texts[1]")
    on.refused(session, batch.id, error, whole=True)
    rest = take(on, session)
    assert list(rest.places) == [batch.places[0], *batch.places[2:]]
    answer(on, session, rest)
    assert on.oldest(0) is window
    assert [str(each) for each in window.bad_rows()] == ["a:1: INPUT_TOO_LONG: the text has 602 tokens"]


@pytest.mark.parametrize(
    "error", [errors.InputTooLarge("no memory"), errors.ResultTooLarge("x", field="texts[3]"), errors.Overloaded("no")]
)
def test_a_text_that_nobody_names_is_found_by_halves(error: errors.SelvageError) -> None:
    """All others are answered."""
    on, window = board(8, batch_size=8)
    session = Session()
    while window.left:
        batch = take(on, session)
        if 5 in batch.places:
            on.refused(session, batch.id, error, whole=False)
        else:
            answer(on, session, batch)
    assert [row.number for row in window.bad_rows()] == [5]
    assert [row.number for row in window.good()[0]] == [0, 1, 2, 3, 4, 6, 7]


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
    on, _ = board()
    session = Session()
    on.refused(session, take(on, session).id, error, whole=True)
    with pytest.raises(Failed, match=str(error)):
        on.oldest(9)
    assert on.take(session) is None


def test_silence_is_borne_so_long() -> None:
    """Counted from the first failure after an answer, over all targets."""
    on, _ = board(6)
    for seconds in (0, 50, 59):
        CLOCK.seconds = seconds
        on.lost(Session(), errors.Unavailable("gone"))
    session = Session()
    answer(on, session, take(on, session))
    for seconds in (61, 100, 121):
        CLOCK.seconds = seconds
        on.lost(Session(), errors.Unavailable("gone"))
    assert on.oldest(0) is None
    CLOCK.seconds = 122
    on.lost(Session(), errors.Unavailable("gone away"))
    with pytest.raises(Failed, match="--patience: no target has answered for 60 s; the last one says: gone away"):
        on.oldest(0)


def test_idle_hours_are_no_silence() -> None:
    """What ended while there was nothing to send counts no more once there is something again."""
    on, window = board()
    session = Session()
    for _ in range(2):
        answer(on, session, take(on, session))
    assert on.oldest(0) is window
    on.lost(session, errors.Unavailable("its time is over"))
    CLOCK.seconds = 3600
    on.add(window)
    on.lost(Session(), errors.Unavailable("gone"))
    assert on.oldest(0) is None


def test_windows_are_taken_back_by_who_waits_for_them() -> None:
    """In any order, each by its owner, though they look the same."""
    on, first = board(2)
    second = Window(shard=0, rows=list(first.rows))
    on.add(second)
    session = Session()
    one, other = take(on, session), take(on, session)
    answer(on, session, other)
    assert on.finished(first, 0) is None
    assert on.finished(second, 0) is second
    answer(on, session, one)
    assert on.finished(first, 0) is first
    assert on.open == 0

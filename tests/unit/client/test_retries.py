"""When to try again: by what the service says, within the caller's time, so often and no more."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from selvage import errors
from selvage.calls.split_call import FIRST, LONGEST, SPREAD, RetryPolicy, SplitCall
from selvage.messages.inputs import InputPart, Operation
from support.split_calls import begun


class Words(Operation[None]):
    """An operation of some parts, answered with anything."""

    def __init__(self, parts: int) -> None:
        super().__init__(seconds=None)
        self._parts = parts

    def parts(self) -> Iterator[InputPart]:
        return (InputPart(start=place, stop=place + 1) for place in range(self._parts))

    def message(self, part: InputPart) -> InputPart:
        return part

    def offsets(self, part: InputPart) -> dict[str, int]:
        return {"texts": part.start}

    def add_reply(self, part: InputPart, reply: Any) -> None:
        pass

    def result(self) -> None:
        pass


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def split_call(parts: int, clock: Clock, *, seconds: float = 60.0, retries: int = 3) -> SplitCall:
    return SplitCall(Words(parts), seconds=seconds, retries=RetryPolicy(retries, lambda: 0.0), clock=clock)


@pytest.mark.parametrize("kind", [*errors.BY_REASON.values(), errors.Cancelled])
@pytest.mark.parametrize("retry_after", [None, 2.0])
def test_only_what_may_pass_is_tried_again(kind: type[errors.SelvageError], retry_after: float | None) -> None:
    """Unavailable by itself, Overloaded when the service says so, nothing else ever."""
    wait = RetryPolicy(5, lambda: 0.0).wait(kind("no", retry_after=retry_after), 1)
    expected = {errors.Unavailable: retry_after or FIRST, errors.Overloaded: retry_after}
    assert wait == expected.get(kind)


def test_waits_grow_and_spread() -> None:
    """Twice as long each time up to a bound, a little longer by chance, and never shorter than what was told."""
    error = errors.Unavailable("no")
    waits = [RetryPolicy(20, lambda: 0.0).wait(error, failures) for failures in range(1, 12)]
    assert waits == [min(FIRST * 2**doubled, LONGEST) for doubled in range(11)]
    assert RetryPolicy(2000, lambda: 0.0).wait(error, 1500) == LONGEST
    overload = errors.Overloaded("no", retry_after=4.0)
    assert RetryPolicy(5, lambda: 0.0).wait(overload, 1) == 4.0
    assert RetryPolicy(5, lambda: 1.0).wait(overload, 1) == 4.0 * (1 + SPREAD)


def test_a_refused_part_is_sent_again_when_it_was_told() -> None:
    """And so is everything else: who is overloaded by one part is so by all."""
    clock = Clock()
    call = split_call(3, clock)
    first, second = begun(call, 2)
    call.record_failure(first, errors.Overloaded("full", retry_after=2.0))
    assert call.next_attempt() is None
    assert call.wait_seconds() == 2.0
    call.record_reply(second, "reply")
    clock.now += 2.0
    again, third = begun(call, 2)
    assert (again.part, again.failures, third.part.start) == (first.part, 0, 2)  # another had the room
    call.record_reply(again, "reply")
    call.record_reply(third, "reply")
    assert call.next_attempt() is None
    assert call.done


def test_a_wait_that_ends_between_two_looks_is_no_wait_without_end() -> None:
    """Though another part is under way, which may take for ever."""
    clock = Clock()
    call = split_call(2, clock)
    first, _ = begun(call, 2)
    call.record_failure(first, errors.Overloaded("full", retry_after=2.0))
    clock.now += 1.999
    assert call.next_attempt() is None
    clock.now += 0.002
    assert call.wait_seconds() == 0.0
    assert call.next_attempt() is not None
    assert call.wait_seconds() is None


def test_a_timeout_of_zero_is_over_at_once() -> None:
    with pytest.raises(errors.DeadlineExceeded):
        split_call(1, Clock(), seconds=0.0).next_attempt()


def test_a_wait_beyond_the_deadline_is_not_begun() -> None:
    """The caller is told the reason at once, not later that time is up."""
    clock = Clock()
    call = split_call(1, clock, seconds=5.0)
    (attempt,) = begun(call, 1)
    assert attempt.seconds == 5.0
    with pytest.raises(errors.Overloaded):
        call.record_failure(attempt, errors.Overloaded("full", retry_after=5.0))


def test_all_parts_share_one_deadline() -> None:
    """What is sent later has less time; what would be sent too late is not."""
    clock = Clock()
    call = split_call(3, clock, seconds=5.0)
    assert call.next_attempt() is not None
    clock.now += 3.0
    (second,) = begun(call, 1)
    assert second.seconds == pytest.approx(2.0)
    clock.now += 2.0
    with pytest.raises(errors.DeadlineExceeded):
        call.next_attempt()


def test_no_deadline_leaves_it_to_the_service() -> None:
    """math.inf: calls have none of their own."""
    (attempt,) = begun(split_call(1, Clock(), seconds=math.inf), 1)
    assert attempt.seconds is None


def test_a_limit_that_fewer_texts_would_not_mend_is_told_at_once() -> None:
    """Not after many halves."""
    operation = Words(1)
    operation.parts = lambda: iter([InputPart(start=0, stop=8)])  # type: ignore[method-assign]
    call = SplitCall(operation, seconds=60, retries=RetryPolicy(3))
    (attempt,) = begun(call, 1)
    with pytest.raises(errors.LimitExceeded):
        call.record_failure(attempt, errors.LimitExceeded("over the model's", field="max_tokens"))

"""A stream of small messages: what is answered together, in what order, and how it ends."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from frontend_service.doors import both_ways, coalescing
from frontend_service.doors.both_ways import NotRead, Replies
from frontend_service.doors.coalescing import GROUP_MESSAGES, GROUPS, MESSAGES, Coalescing, apart
from shared.admission import Admission, Bounds
from shared.errors import InvalidInput, Overloaded, ResultTooLarge, SelvageError, WorkerUnavailable

ROOMY = Bounds()
BAD = 13


class Caller:
    """Sends numbers, as fast as it is read from; the reply to a number is the number.

    A group waits while `holds` has its first number. Numbers in `bad` spoil their group, by name; one of more than
    `largest` is too large. `errors` has the errors that the next groups meet, whatever they hold.
    """

    def __init__(self, *numbers: int, bounds: Bounds = ROOMY, size: int = 1) -> None:
        self.numbers, self.taken = numbers, 0
        self.groups, self.replies = list[list[int]](), list[int]()
        self.more, self.reads = asyncio.Event(), asyncio.Event()
        self.more.set()
        self.reads.set()
        self.holds: dict[int, asyncio.Event] = {}
        self.bad, self.largest = set[int](), 10_000
        self.errors = list[SelvageError]()
        self.under_way = self.most_under_way = 0
        self.turns = 1
        self.admission = Admission(bounds)
        self.size, self.at_end = size, list[Callable[[object], None]]()

    def options(self, number: int) -> Any:
        return number >= 1000

    async def __anext__(self) -> int:
        """Waits at the end while `more` is not set."""
        await asyncio.sleep(0)
        if self.taken == len(self.numbers):
            await self.more.wait()
            raise StopAsyncIteration
        self.taken += 1
        return self.numbers[self.taken - 1]

    async def answer(self, numbers: Sequence[int]) -> list[bytes]:
        self.groups.append(list(numbers))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            for _ in range(self.turns):
                await asyncio.sleep(0)
            if numbers[0] in self.holds:
                await self.holds[numbers[0]].wait()
            if self.errors:
                raise self.errors.pop(0)
            if len(numbers) > self.largest:
                raise ResultTooLarge("too much")
            for place, number in enumerate(numbers):
                if number in self.bad:
                    raise InvalidInput(f"texts[{place}] is bad: {number}", field=f"texts[{place}]")
            return [bytes([number % 256, number // 256]) for number in numbers]
        finally:
            self.under_way -= 1

    async def write(self, reply: bytes) -> None:
        await self.reads.wait()
        self.replies.append(reply[0] + 256 * reply[1])

    async def run(self) -> None:
        with self.admission.stream() as stream:
            replies = Replies(self.write, self.at_end.append)
            await Coalescing(self.admission, stream, replies, self.options, self.answer).run(self)


async def settled() -> None:
    """Everybody who can go on has."""
    for _ in range(6000):
        await asyncio.sleep(0)


async def test_every_message_is_answered_in_order() -> None:
    """Once, whatever groups they came in."""
    caller = Caller(*range(1000))
    await caller.run()
    assert caller.replies == list(range(1000))
    assert sorted(number for group in caller.groups for number in group) == list(range(1000))
    assert caller.admission.stream_requests._value == ROOMY.requests // 2


async def test_a_message_that_comes_alone_is_answered_at_once() -> None:
    """Nobody waits for company."""
    caller = Caller(7)
    caller.more.clear()
    running = asyncio.create_task(caller.run())
    await settled()
    assert caller.replies == [7]
    caller.more.set()
    await running


async def test_what_comes_while_groups_are_under_way_is_one_group() -> None:
    """Up to the bound of a group."""
    caller = Caller(*range(700))
    caller.holds = {number: asyncio.Event() for number in range(GROUPS)}
    running = asyncio.create_task(caller.run())
    await settled()
    assert caller.groups == [[number] for number in range(GROUPS)]
    for event in caller.holds.values():
        event.set()
    await running
    assert caller.groups[GROUPS:] == [
        list(range(start, min(start + GROUP_MESSAGES, 700))) for start in range(GROUPS, 700, GROUP_MESSAGES)
    ]
    assert caller.most_under_way == GROUPS


async def test_groups_that_are_done_early_wait_for_their_turn() -> None:
    """What is computed first is not written first."""
    caller = Caller(*range(50))
    caller.holds = {0: asyncio.Event()}
    running = asyncio.create_task(caller.run())
    await settled()
    assert caller.replies == []
    caller.holds[0].set()
    await running
    assert caller.replies == list(range(50))


async def test_only_equal_options_come_together() -> None:
    """Neighbours with other options are other groups; the order stays."""
    numbers = [*range(20), *range(1000, 1020), *range(20, 40)]
    caller = Caller(*numbers)
    await caller.run()
    assert caller.replies == numbers
    assert all(len({caller.options(number) for number in group}) == 1 for group in caller.groups)


async def test_a_group_is_bounded_by_bytes() -> None:
    """One message always may be."""
    caller = Caller(*range(30), size=coalescing.GROUP_BYTES // 4)
    caller.holds = {number: asyncio.Event() for number in range(GROUPS)}
    running = asyncio.create_task(caller.run())
    await settled()
    for event in caller.holds.values():
        event.set()
    await running
    assert max(map(len, caller.groups)) == 4
    huge = Caller(*range(5), size=10 * coalescing.GROUP_BYTES)
    await huge.run()
    assert huge.replies == list(range(5))
    assert max(map(len, huge.groups)) == 1


@pytest.mark.parametrize(("size", "most"), [(1, MESSAGES), (64 * 1024, 4)])
async def test_no_more_is_read_than_is_answered_or_waits(size: int, most: int) -> None:
    """By messages and by bytes."""
    caller = Caller(*range(4000), size=size)
    caller.holds = {0: asyncio.Event()}
    running = asyncio.create_task(caller.run())
    await settled()
    assert caller.taken == most
    caller.holds[0].set()
    await running
    assert caller.replies == list(range(4000))


async def test_who_does_not_read_is_not_read_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it reads on."""
    monkeypatch.setattr(both_ways, "UNWRITTEN_BYTES", 1)
    caller = Caller(*range(3000))
    caller.reads.clear()
    running = asyncio.create_task(caller.run())
    await settled()
    assert caller.taken < 100
    caller.reads.set()
    await running
    assert caller.replies == list(range(3000))


async def test_who_reads_nothing_for_long_is_let_go() -> None:
    """Nothing of it goes on."""
    caller = Caller(*range(10), bounds=Bounds(read_seconds=0.05))
    caller.reads.clear()
    with pytest.raises(NotRead):
        await caller.run()
    assert (caller.under_way, len(caller.admission.streams), caller.admission.size) == (0, 0, 0)
    for ended in caller.at_end:
        ended(None)
    assert caller.admission.results == 0


@pytest.mark.parametrize("place", [0, 1, 13, 299])
async def test_the_first_error_ends_the_stream_after_the_answers_before_it(place: int) -> None:
    """It is that of its own message, wherever in its group that stood; nothing behind it is answered."""
    caller = Caller(*range(300))
    caller.bad = {place, 299}
    with pytest.raises(InvalidInput, match=rf"texts\[0\] is bad: {place}$"):
        await caller.run()
    assert caller.replies == list(range(place))
    assert caller.under_way == 0


async def test_an_error_is_told_while_the_caller_has_not_ended() -> None:
    """It may never end by itself."""
    caller = Caller(1, 2, BAD, 4)
    caller.more.clear()
    caller.bad = {BAD}
    with pytest.raises(InvalidInput):
        await caller.run()
    assert caller.replies == [1, 2]


async def test_an_error_of_a_later_group_waits_for_the_groups_before() -> None:
    """The first group is slow, and good."""
    caller = Caller(0, BAD)
    caller.bad, caller.holds = {BAD}, {0: asyncio.Event()}
    running = asyncio.create_task(caller.run())
    await settled()
    assert not running.done()
    caller.holds[0].set()
    with pytest.raises(InvalidInput, match=f"{BAD}$"):
        await running
    assert caller.replies == [0]


async def test_what_is_too_large_together_is_answered_in_halves() -> None:
    """Such an error names no message; the halves are asked for in order."""
    caller = Caller(*range(60))
    caller.holds = {number: asyncio.Event() for number in range(GROUPS)}
    running = asyncio.create_task(caller.run())
    await settled()
    for event in caller.holds.values():
        event.set()
    caller.largest = 10
    await running
    assert caller.replies == list(range(60))
    assert [len(group) for group in caller.groups[GROUPS:]] == [57, 28, 14, 7, 7, 14, 7, 7, 29, 14, 7, 7, 15, 7, 8]
    alone = Caller(5)
    alone.errors = [ResultTooLarge("too much")]
    with pytest.raises(ResultTooLarge):
        await alone.run()


async def test_what_is_no_fault_of_a_message_ends_the_stream_as_it_is() -> None:
    """Halves would fare no better."""
    caller = Caller(*range(60))
    caller.errors = [WorkerUnavailable("gone")]
    with pytest.raises(WorkerUnavailable, match="gone"):
        await caller.run()
    assert caller.errors == []


class Crowded(Caller):
    """Refuses a group while others of the stream are under way, as one stream's share of results does."""

    most = 1

    async def answer(self, numbers: Sequence[int]) -> list[bytes]:
        if self.under_way >= self.most:
            await asyncio.sleep(0)
            raise Overloaded("full", retry_after=1.0)
        return await super().answer(numbers)


@pytest.mark.parametrize("later_first", [False, True])
async def test_a_stream_does_not_refuse_itself(later_first: bool) -> None:
    """Whichever of its groups has the room: the first one gets it in the end."""
    caller = Crowded(*range(200))
    if later_first:
        caller.errors = [Overloaded("full")]  # the first group finds no room, and those behind it do
        caller.most = GROUPS
    await asyncio.wait_for(caller.run(), 10)
    assert caller.replies == list(range(200))


async def test_where_others_leave_no_room_a_group_waits_and_becomes_smaller() -> None:
    """As long as a request may take to arrive; then it is told, and all that was held is free."""
    caller = Caller(*range(40))
    caller.errors = [Overloaded("full", retry_after=0.01)] * 7
    await caller.run()
    assert caller.replies == list(range(40))
    assert min(map(len, caller.groups)) == 1
    longer = Caller(*range(40), bounds=Bounds(read_seconds=0.25))
    longer.errors = [Overloaded("full", retry_after=0.01)] * 1000
    with pytest.raises(Overloaded):
        await longer.run()
    assert 0 < len(longer.groups) < 8
    assert (longer.admission.size, longer.admission.results) == (0, 0)


async def test_a_large_message_does_not_wait_in_memory() -> None:
    """It ends the stream where others leave no room for its answer, or hold too many bytes when it comes."""
    caller = Caller(1, 2, size=both_ways.REQUEST_BYTES + 1)
    caller.errors = [Overloaded("full", retry_after=0.01)]
    with pytest.raises(Overloaded, match="full"):
        await caller.run()
    other = Caller(1, 2, 3, bounds=Bounds(size=2 * both_ways.REQUEST_BYTES), size=both_ways.REQUEST_BYTES + 1)
    with other.admission.stream(), other.admission.hold(both_ways.REQUEST_BYTES), pytest.raises(Overloaded):
        await other.run()
    assert (other.groups, other.admission.size) == ([], 0)


async def test_groups_are_under_way_together_again_after_a_refusal() -> None:
    """But not at once."""
    caller = Caller(*range(1000, 9000))
    caller.errors, caller.turns = [Overloaded("full", retry_after=0.01)], 500
    running = asyncio.create_task(caller.run())
    while caller.errors:  # noqa: ASYNC110
        await asyncio.sleep(0)
    caller.most_under_way = 0
    while len(caller.replies) < 100:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert caller.most_under_way == 1
    await running
    assert caller.replies == list(range(1000, 9000))
    assert caller.most_under_way == GROUPS


async def test_what_waits_is_held() -> None:
    """From the time that it comes until it is answered."""
    caller = Caller(*range(50), size=100)
    caller.holds = {0: asyncio.Event()}
    running = asyncio.create_task(caller.run())
    await settled()
    assert caller.admission.size == 50 * 100
    caller.holds[0].set()
    await running
    assert caller.admission.size == 0


async def test_a_drain_answers_what_was_read_and_reads_no_more() -> None:
    """Then the stream ends with the drain's error."""
    caller = Caller(*range(40))
    caller.more.clear()
    caller.holds = {0: asyncio.Event()}
    running = asyncio.create_task(caller.run())
    await settled()
    caller.admission.streams.end(WorkerUnavailable("draining"))
    caller.holds[0].set()
    with pytest.raises(WorkerUnavailable, match="draining"):
        await running
    assert caller.replies == list(range(40))


async def test_a_caller_that_goes_ends_what_was_asked() -> None:
    """At once."""
    caller = Caller(*range(40))
    caller.holds = {0: asyncio.Event()}
    running = asyncio.create_task(caller.run())
    await settled()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert caller.under_way == 0


async def test_streams_together_answer_half_of_what_may_be_answered() -> None:
    """A group counts as a request."""
    caller = Caller(*range(100), bounds=Bounds(requests=2))
    await caller.run()
    assert caller.most_under_way == 1
    assert caller.replies == list(range(100))


def test_parts_of_a_group_are_all_of_it_in_order() -> None:
    """Around the one that is to blame, or in halves; who is alone stays."""
    part = list(range(5))
    assert apart(part, InvalidInput("", field="texts[2]")) == [[0, 1], [2], [3, 4]]
    assert apart(part, InvalidInput("", field="tokenized[0]")) == [[0], [1, 2, 3, 4]]
    assert apart(part, InvalidInput("", field="prompt_name")) == [[0, 1], [2, 3, 4]]
    assert apart(part, Overloaded("")) == [part]
    assert apart([7], InvalidInput("", field="texts[0]")) == [[7]]

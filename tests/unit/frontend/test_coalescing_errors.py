"""How an error ends a stream of small messages, and which message it blames."""

import asyncio

import pytest
from callers import BAD, Caller, settled

from frontend_service.api.streams.coalesced import GROUPS, split_around
from shared.errors import InvalidInput, Overloaded, ResultTooLarge, WorkerUnavailable


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


def test_parts_of_a_group_are_all_of_it_in_order() -> None:
    """Around the one that is to blame, or in halves; who is alone stays."""
    part = list(range(5))
    assert split_around(part, InvalidInput("", field="texts[2]")) == [[0, 1], [2], [3, 4]]
    assert split_around(part, InvalidInput("", field="tokenized[0]")) == [[0], [1, 2, 3, 4]]
    assert split_around(part, InvalidInput("", field="prompt_name")) == [[0, 1], [2, 3, 4]]
    assert split_around(part, Overloaded("")) == [part]
    assert split_around([7], InvalidInput("", field="texts[0]")) == [[7]]

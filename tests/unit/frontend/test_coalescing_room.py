"""How much of a stream of small messages is read, waits and is answered at once, beside others."""

import asyncio
from collections.abc import Sequence

import pytest
from callers import Caller, settled

from frontend_service.api.streams import two_way_stream as both_ways
from frontend_service.api.streams.coalesced import GROUPS, MESSAGES
from frontend_service.api.streams.two_way_stream import NotRead
from shared.errors import Overloaded
from shared.server.admission import Bounds


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
    assert (caller.under_way, caller.admission.streams) == (0, 0)
    for ended in caller.at_end:
        ended(None)
    assert caller.admission.size == 0


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
    await caller.run()
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
    assert longer.admission.size == 0


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
    assert caller.admission.size >= 50 * 100  # and replies that wait for the first one
    caller.holds[0].set()
    await running
    assert caller.admission.size == 0


async def test_streams_together_answer_half_of_what_may_be_answered() -> None:
    """A group counts as a request."""
    caller = Caller(*range(100), bounds=Bounds(requests=2))
    await caller.run()
    assert caller.most_under_way == 1
    assert caller.replies == list(range(100))

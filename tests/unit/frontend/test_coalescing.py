"""A stream of small messages: what is answered together, and in what order."""

import asyncio

import pytest
from callers import ROOMY, Caller, settled

from frontend_service.api.streams import coalesced as coalescing
from frontend_service.api.streams.coalesced import GROUP_MESSAGES, GROUPS
from shared.errors import WorkerUnavailable


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


async def test_a_drain_answers_what_was_read_and_reads_no_more() -> None:
    """Then the stream ends with the drain's error."""
    caller = Caller(*range(40))
    caller.more.clear()
    caller.holds = {0: asyncio.Event()}
    running = asyncio.create_task(caller.run())
    await settled()
    caller.admission.end_streams(WorkerUnavailable("draining"))
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

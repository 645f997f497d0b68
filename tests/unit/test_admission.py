"""What a process lets in while something large arrives or is parsed."""

import asyncio
import itertools

import pytest

from shared import admission as module
from shared.admission import FIRST_LOOK, GROWTH, LARGE_REQUEST, QUICK_READS, QUICK_SECONDS, Admission, Bounds
from shared.errors import Overloaded


async def received() -> bytes:
    return b""


async def slowly() -> bytes:
    await asyncio.sleep(3600)
    return b""


SOON, SURELY = 20 * (QUICK_SECONDS + FIRST_LOOK), 10.0
"""Seconds: to see that nothing happens, and that something does, on however busy a machine."""


async def began(*reads: "asyncio.Task[bytes]", seconds: float = SURELY) -> int:
    """How many of them ended within a time."""
    done, _ = await asyncio.wait(reads, timeout=seconds)
    return len(done)


async def given_up(*reads: "asyncio.Task[bytes]") -> None:
    for read in reads:
        read.cancel()
    await asyncio.gather(*reads, return_exceptions=True)


async def test_no_read_begins_while_a_large_message_is_parsed() -> None:
    admission = Admission(Bounds())
    async with admission.parsing(LARGE_REQUEST):
        waiting = asyncio.create_task(admission.read(received))
        assert not await began(waiting, seconds=SOON)
    assert await began(waiting) == 1
    async with admission.parsing(LARGE_REQUEST - 1):
        assert await began(asyncio.create_task(admission.read(received))) == 1


async def test_a_read_that_is_given_up_before_it_began_leaves_its_place() -> None:
    admission = Admission(Bounds())
    async with admission.parsing(LARGE_REQUEST):
        waiting = [asyncio.create_task(admission.read(received)) for _ in range(2 * QUICK_READS)]
        assert not await began(*waiting, seconds=SOON)
        await given_up(*waiting)
    assert await began(*(asyncio.create_task(admission.read(received)) for _ in range(QUICK_READS))) == QUICK_READS


@pytest.mark.parametrize(("growth", "next_ones"), [(GROWTH // 20, 1), (GROWTH, 0)])
async def test_slow_senders_make_room_and_large_requests_do_not(
    monkeypatch: pytest.MonkeyPatch, growth: int, next_ones: int
) -> None:
    """The process grows by so much each time that it is looked at, which several do."""
    taken = itertools.count(0, growth)
    monkeypatch.setattr(module, "memory_taken", lambda: next(taken))
    admission = Admission(Bounds(memory=1 << 60))
    slow = [asyncio.create_task(admission.read(slowly)) for _ in range(QUICK_READS)]
    await asyncio.sleep(0)
    following = asyncio.create_task(admission.read(received))
    assert await began(following, seconds=SURELY if next_ones else SOON) == next_ones
    await given_up(*slow)
    assert await began(following) == 1
    assert admission.slow_reads == 0


async def test_without_memory_one_slow_read_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0
    monkeypatch.setattr(module, "memory_taken", lambda: taken)
    admission = Admission(Bounds(memory=1))
    slow = [asyncio.create_task(admission.read(slowly)) for _ in range(QUICK_READS)]
    await asyncio.sleep(2 * QUICK_SECONDS)
    taken = 2
    assert await began(*slow, seconds=1) == QUICK_READS - 1
    (refused,) = (read for read in slow if read.done())
    with pytest.raises(Overloaded, match="requests take 2 bytes, the limit is 1"):
        await refused
    assert admission.refused["memory"] == QUICK_READS - 1
    await given_up(*slow)

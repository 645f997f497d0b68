"""What a process lets in while something large arrives or is parsed."""

import asyncio
import itertools
from collections.abc import Callable

import pytest

from shared.errors import Overloaded
from shared.server.admission import Bounds
from shared.server.admission.reads import (
    FIRST_LOOK,
    GROWTH,
    LARGE_REQUEST,
    PATIENCE_SECONDS,
    QUICK_READS,
    QUICK_SECONDS,
    Reads,
)
from shared.server.admission.refusals import Refusals
from support.clockwork import in_no_time

ROOMY = Bounds()


def made(bounds: Bounds = ROOMY, memory: Callable[[], int] = int) -> Reads:
    """Of a process in which nothing else happens."""
    return Reads(bounds, Refusals(), memory, bool)


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


@in_no_time
async def test_no_read_begins_while_a_large_message_is_parsed() -> None:
    reads = made()
    async with reads.parsing(LARGE_REQUEST):
        waiting = asyncio.create_task(reads.read(received))
        assert not await began(waiting, seconds=SOON)
    assert await began(waiting) == 1
    async with reads.parsing(LARGE_REQUEST - 1):
        assert await began(asyncio.create_task(reads.read(received))) == 1


@in_no_time
async def test_a_read_that_is_given_up_before_it_began_leaves_its_place() -> None:
    reads = made()
    async with reads.parsing(LARGE_REQUEST):
        waiting = [asyncio.create_task(reads.read(received)) for _ in range(2 * QUICK_READS)]
        assert not await began(*waiting, seconds=SOON)
        await given_up(*waiting)
    assert await began(*(asyncio.create_task(reads.read(received)) for _ in range(QUICK_READS))) == QUICK_READS


@pytest.mark.parametrize(("growth", "next_ones"), [(GROWTH // 20, 1), (GROWTH, 0)])
@in_no_time
async def test_slow_senders_make_room_and_large_requests_do_not(growth: int, next_ones: int) -> None:
    """The process grows by so much each time that it is looked at, which several do."""
    taken = itertools.count(0, growth)
    reads = made(Bounds(memory=1 << 60), lambda: next(taken))
    slow = [asyncio.create_task(reads.read(slowly)) for _ in range(QUICK_READS)]
    await asyncio.sleep(0)
    following = asyncio.create_task(reads.read(received))
    assert await began(following, seconds=SURELY if next_ones else SOON) == next_ones
    await given_up(*slow)
    assert await began(following) == 1
    assert reads.slow == 0


@in_no_time
async def test_without_memory_one_slow_read_goes_on() -> None:
    taken = 0
    refusals = Refusals()
    reads = Reads(Bounds(memory=1), refusals, lambda: taken, bool)
    slow = [asyncio.create_task(reads.read(slowly)) for _ in range(QUICK_READS)]
    await asyncio.sleep(2 * QUICK_SECONDS)
    taken = 2
    assert await began(*slow, seconds=1) == QUICK_READS - 1
    (refused,) = (read for read in slow if read.done())
    with pytest.raises(Overloaded, match="requests take 2 bytes, the limit is 1"):
        await refused
    assert refusals.counts["memory"] == QUICK_READS - 1
    await given_up(*slow)


@pytest.mark.parametrize("is_counted", [False, True], ids=["a read that begins", "one that is slow"])
@in_no_time
async def test_a_small_request_outlasts_a_moment_without_memory(is_counted: bool) -> None:
    """Another caller's large request takes the memory and holds up what comes meanwhile; of both the older one ends."""
    taken, arrived = 0, asyncio.Event()
    refusals = Refusals()
    reads = Reads(Bounds(memory=1), refusals, lambda: taken, bool)

    async def small() -> bytes:
        await arrived.wait()
        return b"small"

    large = asyncio.create_task(reads.read(slowly))
    await asyncio.sleep(PATIENCE_SECONDS)
    reading = asyncio.create_task(reads.read(small))
    await asyncio.sleep(2 * QUICK_SECONDS if is_counted else 0)
    taken = 2
    assert not await began(reading, seconds=PATIENCE_SECONDS / 2)
    arrived.set()
    assert await reading == b"small"
    assert refusals.counts["memory"] == large.done()
    await given_up(large)


async def test_large_messages_are_put_together_one_by_one() -> None:
    """Timers run between, so that somebody can look; what fails or is small comes as it does without."""
    reads, seen = made(), list[str]()
    arrived = [asyncio.get_running_loop().create_future() for _ in range(3)]

    async def large(number: int) -> bytes:
        await arrived[number]
        seen.append(f"message {number}")
        if number < 2:
            asyncio.get_running_loop().call_later(0, seen.append, f"timer {number}")
        return bytes(LARGE_REQUEST)

    taking = [asyncio.create_task(reads.taken(lambda number=number: large(number))) for number in range(3)]  # type: ignore[misc]
    await asyncio.sleep(0)
    for each in arrived:
        each.set_result(None)
    assert {len(taken) for taken in await asyncio.gather(*taking)} == {LARGE_REQUEST}
    assert seen == ["message 0", "timer 0", "message 1", "timer 1", "message 2"]

    async def failing() -> bytes:
        await asyncio.sleep(0)
        raise ValueError("no message")

    assert await reads.taken(received) == b""
    with pytest.raises(ValueError, match="no message"):
        await reads.taken(failing)


async def test_a_read_sees_what_its_future_ends_with() -> None:
    """As without the gate: an error, or that it was cancelled."""
    reads = made()
    for error in (ValueError("broken"), asyncio.CancelledError()):
        arrives = asyncio.get_running_loop().create_future()
        seen = list[BaseException]()

        async def receive(arrives: "asyncio.Future[bytes]" = arrives, seen: list[BaseException] = seen) -> bytes:
            try:
                return await arrives
            except BaseException as told:
                seen.append(told)
                raise

        taking = asyncio.create_task(reads.taken(receive))
        await asyncio.sleep(0)
        if isinstance(error, ValueError):
            arrives.set_exception(error)
        else:
            taking.cancel()
        with pytest.raises(type(error)):
            await taking
        assert isinstance(seen[0], type(error))


async def test_a_read_that_nobody_waits_for_goes_on_to_its_end() -> None:
    """What arrives later would be lost with it. Its error is nobody's."""
    loop = asyncio.get_running_loop()
    for error in (None, ValueError("broken")):
        arrives, ended = [loop.create_future(), loop.create_future()], list[str]()

        async def receive(
            arrives: "list[asyncio.Future[None]]" = arrives, ended: list[str] = ended, error: Exception | None = error
        ) -> bytes:
            try:
                await arrives[0]
                await asyncio.sleep(0)
                await arrives[1]
                if error is not None:
                    raise error
                return b""
            finally:
                ended.append("arrived" if arrives[1].done() else "cancelled")

        reads = made()
        reading = asyncio.create_task(reads.read(receive))
        await asyncio.sleep(0)
        await given_up(reading)
        assert reading.cancelled()
        for future in arrives:
            assert not ended
            future.set_result(None)
            for _ in range(5):
                await asyncio.sleep(0)
        assert ended == ["arrived"]
        assert await reads.read(received) == b""


async def test_a_read_ends_quietly_whose_coroutine_the_collector_of_garbage_closed_first() -> None:
    """In a circle of garbage Python closes coroutines in any order; an error would be printed, or fail another test."""
    waiting = slowly()
    reading = made().taken(lambda: waiting)
    reading.send(None)
    waiting.close()
    reading.close()

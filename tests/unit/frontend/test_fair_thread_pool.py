"""Requests that share threads a slice at a time."""

import asyncio
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from frontend_service.tokenizing.fair_thread_pool import (
    PATIENCE,
    TURN,
    FairThreadPool,
    TimeSlices,
    run_to_end,
    single_slice,
)
from shared.errors import WorkerUnavailable


class Order:
    """Notes whose slices ran; a slice takes half a turn by its clock."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def slices(self, name: str, count: int) -> TimeSlices[str]:
        for number in range(count):
            self.ran.append(name)
            yield number
        return name

    def clock(self) -> float:
        return len(self.ran) * TURN / 2


class Gate:
    """A request whose only slice runs until it is opened, and tells that it has begun."""

    def __init__(self) -> None:
        self.begun, self.open = threading.Event(), threading.Event()

    def slices(self) -> TimeSlices[None]:
        self.begun.set()
        self.open.wait()
        yield 0

    async def shut(self, turns: FairThreadPool) -> "asyncio.Task[None]":
        """Holds one thread of these turns from now on."""
        task = asyncio.create_task(turns.run(self.slices()))
        await asyncio.to_thread(self.begun.wait)
        return task


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


async def queued(turns: FairThreadPool, *requests: TimeSlices[str]) -> list["asyncio.Task[str]"]:
    tasks = [asyncio.create_task(turns.run(request)) for request in requests]
    await asyncio.sleep(0)
    return tasks


async def test_a_small_request_comes_before_giants_that_had_their_turn(threads: ThreadPoolExecutor) -> None:
    """It came last, and ends while the others still have most of their slices to do."""
    order, half, gate = Order(), asyncio.Event(), Gate()
    turns, loop = FairThreadPool(threads, order.clock), asyncio.get_running_loop()

    def telling() -> TimeSlices[str]:
        yield from order.slices("c", 10)
        loop.call_soon_threadsafe(half.set)
        yield from order.slices("c", 400)
        return "c"

    giants = await queued(turns, *(order.slices(name, 410) for name in "ab"), telling())
    await half.wait()
    before = await gate.shut(turns)
    (small,) = await queued(turns, order.slices("small", 1))
    served = len(order.ran)
    gate.open.set()
    assert await small == "small"
    assert order.ran.index("small") - served <= 2
    assert await asyncio.gather(*giants) == ["a", "b", "c"]
    await before


async def test_equal_requests_are_served_in_turns(threads: ThreadPoolExecutor) -> None:
    """None is ever more than a few slices ahead of another."""
    order, gate = Order(), Gate()
    turns = FairThreadPool(threads, order.clock)
    before = await gate.shut(turns)
    tasks = await queued(turns, *(order.slices(name, 30) for name in "abc"))
    gate.open.set()
    await asyncio.gather(before, *tasks)
    for length in range(len(order.ran)):
        counts = [order.ran[:length].count(name) for name in "abc"]
        assert max(counts) - min(counts) <= 4
    assert [order.ran.count(name) for name in "abc"] == [30] * 3


async def test_a_stream_of_small_requests_does_not_starve_a_giant(threads: ThreadPoolExecutor) -> None:
    """Every so many turns are those of the one that waited longest."""
    order, gate, loop = Order(), Gate(), asyncio.get_running_loop()
    turns = FairThreadPool(threads, order.clock)
    before = await gate.shut(turns)

    def small(left: int) -> TimeSlices[str]:
        """While it runs, the next one comes."""
        come = threading.Event()
        loop.call_soon_threadsafe(arrive, left, come)
        come.wait()
        yield from order.slices("small", 1)
        return "small"

    def arrive(left: int, come: threading.Event) -> None:
        if left:
            tasks.append(loop.create_task(turns.run(small(left - 1))))
        loop.call_soon(come.set)  # after the task's first step

    tasks = await queued(turns, order.slices("giant", 10), small(100))
    gate.open.set()
    await before
    assert await tasks[0] == "giant"
    assert order.ran[: 10 * PATIENCE + 5].count("giant") == 10
    for task in tasks:  # grows while they end
        await task


async def test_an_error_ends_its_own_request_only(threads: ThreadPoolExecutor) -> None:
    """Whatever it is, a panic of a library included; the thread goes on."""

    class Panic(BaseException):
        pass

    def failing() -> TimeSlices[str]:
        yield 0
        raise Panic

    turns, order = FairThreadPool(threads), Order()
    found = await asyncio.gather(turns.run(failing()), turns.run(order.slices("a", 9)), return_exceptions=True)
    assert isinstance(found[0], Panic)
    assert found[1] == "a"


async def test_a_cancelled_request_stops_after_its_running_slice(threads: ThreadPoolExecutor) -> None:
    """What waits does not run at all, and what it holds is let go."""
    turns, order, gate, closed = FairThreadPool(threads), Order(), Gate(), []

    def held() -> TimeSlices[str]:
        try:
            yield from order.slices("held", 5)
        finally:
            closed.append(True)
        return "held"

    running = await gate.shut(turns)
    tasks = await queued(turns, held(), order.slices("waits", 5))
    for task in (running, tasks[1]):
        task.cancel()
    await asyncio.wait([running, tasks[1]])
    gate.open.set()
    assert await tasks[0] == "held"
    await turns.run(single_slice(lambda: None))
    assert order.ran == ["held"] * 5
    assert closed == [True]


async def test_closing_ends_all(threads: ThreadPoolExecutor) -> None:
    """Those that wait at once, the running one after its turn, new ones from the start."""
    turns, order, gate = FairThreadPool(threads), Order(), Gate()

    def endless() -> TimeSlices[None]:
        yield from gate.slices()
        yield from itertools.repeat(0)

    running = asyncio.create_task(turns.run(endless()))
    await asyncio.to_thread(gate.begun.wait)
    waiting = await queued(turns, *(order.slices(name, 5) for name in "abc"))
    turns.close()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    gate.open.set()
    found += await asyncio.gather(running, turns.run(order.slices("new", 1)), return_exceptions=True)
    assert [type(each) for each in found] == [WorkerUnavailable] * 5
    assert order.ran == []


async def test_every_request_ends_once_with_its_own_result() -> None:
    """Hundreds over several threads, every third cancelled at some time."""
    with ThreadPoolExecutor(4) as threads:
        turns, order = FairThreadPool(threads), Order()
        tasks = await queued(turns, *(order.slices(str(number), number % 7) for number in range(300)))
        for task in tasks[::3]:
            task.cancel()
            await asyncio.sleep(0)
        found = await asyncio.gather(*tasks, return_exceptions=True)
    for number, each in enumerate(found):
        assert each == str(number) or (number % 3 == 0 and isinstance(each, asyncio.CancelledError))


def test_slices_can_be_run_here_and_now() -> None:
    """To their result."""
    assert run_to_end(Order().slices("a", 3)) == "a"
    assert run_to_end(single_slice(lambda: 7)) == 7

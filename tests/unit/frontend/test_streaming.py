"""A stream both ways: what it holds, in what order it answers, and how it ends."""

import asyncio
from collections.abc import Callable

import pytest

from frontend_service.api.streams import REQUESTS, UNWRITTEN_BYTES, NotRead, Replies, TwoWayStream
from shared.errors import InvalidInput, WorkerUnavailable
from shared.server.admission import LIFETIME, Admission, Bounds, OpenStream
from support.clockwork import in_no_time

ROOMY = Bounds()


class Caller:
    """Sends numbers, takes replies while `reads` is set; a number's reply waits for its own event if there is one."""

    def __init__(
        self, *numbers: int | Exception, bounds: Bounds = ROOMY, size: int = 1, reply_bytes: int = 100
    ) -> None:
        self.numbers, self.taken, self.replies = numbers, 0, list[bytes]()
        self.reads, self.more = asyncio.Event(), asyncio.Event()
        self.reads.set()
        self.more.set()
        self.holds: dict[int, asyncio.Event] = {}
        self.ended: list[int] = []
        self.admission = Admission(bounds)
        self.size, self.reply_bytes, self.at_end = size, reply_bytes, list[Callable[[object], None]]()
        self.stream: TwoWayStream[int]
        self.open: OpenStream

    async def __anext__(self) -> int:
        """The next number. Waits at the end while `more` is not set."""
        await asyncio.sleep(0)  # as bytes arrive: others have their turn
        if self.taken == len(self.numbers):
            await self.more.wait()
            raise StopAsyncIteration
        number = self.numbers[self.taken]
        self.taken += 1
        if isinstance(number, Exception):
            raise number
        return number

    async def write(self, reply: bytes) -> None:
        await self.reads.wait()
        self.replies.append(reply)

    async def answer(self, number: int, size: int) -> None:
        assert size == self.size
        try:
            if number in self.holds:
                await self.holds[number].wait()
            await self.stream.send(bytes([number]) * self.reply_bytes)
        finally:
            self.ended.append(number)

    async def run(self) -> None:
        with self.admission.stream() as self.open:
            self.stream = TwoWayStream(self.admission, self.open, Replies(self.write, self.at_end.append), self.answer)
            await self.stream.run(self)


async def settled() -> None:
    """Everybody who can go on has."""
    for _ in range(4000):
        await asyncio.sleep(0)


async def test_who_is_done_first_is_answered_first() -> None:
    caller = Caller(*range(50))
    caller.holds[0] = asyncio.Event()
    running = asyncio.create_task(caller.run())
    await settled()
    assert [reply[0] for reply in caller.replies] == list(range(1, 50))
    caller.holds[0].set()
    await running
    assert caller.replies[-1][0] == 0


@pytest.mark.parametrize(("size", "begun"), [(1, REQUESTS), (100 * 1024, 3), (10**9, 1)])
async def test_no_more_is_read_than_is_answered_at_once(size: int, begun: int) -> None:
    """By requests and by bytes; one always may be."""
    caller = Caller(*([0] * 2000), size=size)
    caller.holds[0] = asyncio.Event()
    running = asyncio.create_task(caller.run())
    await settled()
    assert caller.taken == begun
    caller.holds[0].set()
    await running
    assert len(caller.replies) == 2000


async def test_who_does_not_read_is_not_read_from() -> None:
    caller = Caller(*([7] * 200), reply_bytes=UNWRITTEN_BYTES // 10)
    caller.reads.clear()
    running = asyncio.create_task(caller.run())
    await settled()
    assert caller.taken < 50
    caller.reads.set()
    await running
    assert len(caller.replies) == 200


async def test_who_reads_nothing_for_long_is_let_go() -> None:
    """Nothing of it goes on; the reply that lies unread counts until the call ends, and none is written after it."""
    caller = Caller(1, 2, bounds=Bounds(read_seconds=0.05))
    caller.reads.clear()
    with pytest.raises(NotRead, match=r"no reply was read for 0\.05 s"):
        await caller.run()
    assert sorted(caller.ended) == [1, 2]
    assert caller.stream._unwritten == 0
    assert caller.admission.streams == 0
    caller.reads.set()
    with pytest.raises(asyncio.CancelledError):
        await caller.stream.send(b"another")
    assert not caller.replies
    assert caller.admission.size == 100
    (end,) = caller.at_end
    end(None)
    assert caller.admission.size == 0


async def test_what_is_no_request_ends_the_stream_after_those_before_it() -> None:
    """They are answered first; what comes after it is read, so that its caller hears of it, and let go."""
    caller = Caller(1, 2, InvalidInput("no batch"), 3, InvalidInput("another"), 4)
    caller.holds[1] = asyncio.Event()
    running = asyncio.create_task(caller.run())
    await settled()
    assert not running.done()
    assert caller.taken == 3  # a caller is not to send for nothing, as fast as it can
    caller.holds[1].set()
    with pytest.raises(InvalidInput, match="no batch"):
        await running
    assert caller.taken == 6
    assert sorted(reply[0] for reply in caller.replies) == [1, 2]


async def test_a_caller_that_goes_ends_what_was_asked() -> None:
    caller = Caller(1, 2, 3)
    caller.holds = {number: asyncio.Event() for number in (1, 2, 3)}
    running = asyncio.create_task(caller.run())
    await settled()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(caller.ended) == [1, 2, 3]
    assert (caller.stream._requests, caller.stream._bytes) == (0, 0)


async def test_a_drain_answers_what_was_read_and_reads_no_more() -> None:
    """Then it ends with the drain's error; an idle stream at once."""
    caller = Caller(1, 2)
    caller.more.clear()
    caller.holds[1] = asyncio.Event()
    running = asyncio.create_task(caller.run())
    await settled()
    caller.admission.end_streams(WorkerUnavailable("draining"))
    await settled()
    assert not running.done()
    caller.holds[1].set()
    with pytest.raises(WorkerUnavailable, match="draining"):
        await running
    assert sorted(reply[0] for reply in caller.replies) == [1, 2]
    caller.taken = 0
    with pytest.raises(WorkerUnavailable, match="draining"):  # as does one that is opened too late
        await caller.run()


@in_no_time
async def test_a_stream_ends_before_its_connection_must() -> None:
    caller = Caller(1)
    caller.more.clear()
    with pytest.raises(WorkerUnavailable, match=f"the stream is {LIFETIME:g} s old; go on in another one"):
        await caller.run()
    assert [reply[0] for reply in caller.replies] == [1]


async def test_another_that_ends_wakes_one_that_waits() -> None:
    """One for each; who is alone does not wait."""
    caller = Caller(*range(4))
    caller.holds = {number: asyncio.Event() for number in range(4)}
    running = asyncio.create_task(caller.run())
    await settled()
    waiting = [asyncio.create_task(caller.stream.wait_for_another()) for _ in range(3)]
    await settled()
    assert not any(task.done() for task in waiting)
    assert not await caller.stream.wait_for_another()
    caller.holds[0].set()
    await settled()
    assert [task.done() for task in waiting] == [True, False, False]
    for held in caller.holds.values():
        held.set()
    await running
    assert all(await asyncio.gather(*waiting))

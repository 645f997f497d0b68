"""A stream both ways: what it holds, in what order it answers, and how it ends."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from frontend_service.doors import streaming
from frontend_service.doors.streaming import Streaming, uncounted
from shared.admission import Admission, Bounds
from shared.errors import DeadlineExceeded, InvalidInput, Overloaded

ROOMY = Bounds()


class Caller:
    """Sends numbers, takes replies while `reads` is set; a number's reply waits for its own event if there is one."""

    def __init__(self, *numbers: int | Exception, bounds: Bounds = ROOMY) -> None:
        self.numbers, self.taken, self.replies = numbers, 0, list[bytes]()
        self.reads = asyncio.Event()
        self.reads.set()
        self.holds: dict[int, asyncio.Event] = {}
        self.ended: list[int] = []
        self.stream = Streaming(Admission(bounds), self.write)

    async def requests(self) -> AsyncIterator[int]:
        for number in self.numbers:
            await asyncio.sleep(0)  # as bytes arrive: others have their turn
            self.taken += 1
            if isinstance(number, Exception):
                raise number
            yield number

    async def write(self, reply: bytes) -> None:
        await self.reads.wait()
        self.replies.append(reply)

    async def answer(self, number: int) -> None:
        try:
            if number in self.holds:
                await self.holds[number].wait()
            reply = bytes([number]) * 100
            await self.stream.send(reply, self.stream.hold(reply))
        finally:
            self.ended.append(number)

    async def run(self, size: int = 1) -> None:
        await self.stream.run(self.requests(), lambda _: size, self.answer)


async def settled() -> None:
    """Everybody who can go on has."""
    for _ in range(4000):
        await asyncio.sleep(0)


async def test_who_is_done_first_is_answered_first() -> None:
    """And every request once."""
    caller = Caller(*range(50))
    caller.holds[0] = asyncio.Event()
    running = asyncio.create_task(caller.run())
    await settled()
    assert [reply[0] for reply in caller.replies] == list(range(1, 50))
    caller.holds[0].set()
    await running
    assert caller.replies[-1][0] == 0


@pytest.mark.parametrize(("size", "begun"), [(1, 1024), (100 * 1024, 3), (10**9, 1)])
async def test_no_more_is_read_than_is_answered_at_once(size: int, begun: int) -> None:
    """By requests and by bytes; one always may be."""
    caller = Caller(*([0] * 2000))
    caller.holds[0] = asyncio.Event()
    running = asyncio.create_task(caller.run(size))
    await settled()
    assert caller.taken == begun
    caller.holds[0].set()
    await running
    assert len(caller.replies) == 2000


async def test_who_does_not_read_is_not_read_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it reads on."""
    monkeypatch.setattr(streaming, "UNWRITTEN_BYTES", 1000)
    caller = Caller(*([7] * 200))
    caller.reads.clear()
    running = asyncio.create_task(caller.run())
    await settled()
    assert caller.taken < 50
    caller.reads.set()
    await running
    assert len(caller.replies) == 200


async def test_who_reads_nothing_for_long_is_let_go() -> None:
    """Nothing of it goes on, and nothing counts as unread."""
    caller = Caller(1, 2, bounds=Bounds(read_seconds=0.05))
    caller.reads.clear()
    with pytest.raises(DeadlineExceeded, match=r"no reply was read for 0\.05 s"):
        await caller.run()
    assert sorted(caller.ended) == [1, 2]
    assert caller.stream._unwritten == 0


async def test_what_is_no_request_ends_the_stream_after_those_before_it() -> None:
    """They are answered first."""
    caller = Caller(1, 2, InvalidInput("no batch"), 3)
    caller.holds[1] = asyncio.Event()
    running = asyncio.create_task(caller.run())
    await settled()
    assert not running.done()
    caller.holds[1].set()
    with pytest.raises(InvalidInput, match="no batch"):
        await running
    assert sorted(reply[0] for reply in caller.replies) == [1, 2]


async def test_a_caller_that_goes_ends_what_was_asked() -> None:
    """At once."""
    caller = Caller(1, 2, 3)
    caller.holds = {number: asyncio.Event() for number in (1, 2, 3)}
    running = asyncio.create_task(caller.run())
    await settled()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(caller.ended) == [1, 2, 3]


async def test_large_replies_count_among_all_that_are_unread() -> None:
    """Small ones do not: so an error can always be told."""
    stream = Streaming(Admission(Bounds(unread=100_000)), asyncio.sleep)
    is_read = stream.hold(bytes(70_000))
    with pytest.raises(Overloaded):
        stream.hold(bytes(70_000))
    assert stream.hold(bytes(60_000)) is uncounted
    is_read()
    stream.hold(bytes(70_000))

"""Streams of tei.v1: messages are requests of their own, answered in order, or become one Rerank."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from frontend_service.api.streams import REQUEST_BYTES, REQUESTS, Replies
from frontend_service.api.tei_v1.tei_servicers import MessageStream, RerankGathering
from frontend_service.domain.limits import Limits
from shared.caller import Caller as Named
from shared.errors import (
    DeadlineExceeded,
    InvalidInput,
    LimitExceeded,
    Overloaded,
    SelvageError,
    WorkerUnavailable,
)
from shared.server.admission import Admission, Bounds
from shared.server.calls import Calls
from support.clockwork import in_no_time
from support.references import eventually
from tei.v1 import tei_pb2 as pb

ROOMY = Bounds()
HERE = Named(method="/tei.v1.Tokenize/DecodeStream", request_id="mine")


class Caller:
    """Sends numbers, as fast as it is read from; the reply to a number is the number.

    A number is held up while `holds` has it. Numbers in `bad` are refused. `errors` are those of the next calls,
    whatever they ask for; a call is refused while `room` others are under way.
    """

    def __init__(self, *numbers: int, bounds: Bounds = ROOMY, size: int = 1) -> None:
        self.numbers, self.taken, self.size = numbers, 0, size
        self.begun, self.replies = list[int](), list[int]()
        self.more = asyncio.Event()
        self.more.set()
        self.holds: dict[int, asyncio.Event] = {}
        self.bad, self.errors, self.room = set[int](), list[SelvageError](), 10_000
        self.under_way = self.most_under_way = 0
        self.calls = Calls(timeout=60, bounds=bounds)
        self.admission = self.calls.admission

    async def __anext__(self) -> pb.DecodeRequest:
        """Waits at the end while `more` is not set."""
        await asyncio.sleep(0)
        if self.taken == len(self.numbers):
            await self.more.wait()
            raise StopAsyncIteration
        self.taken += 1
        return pb.DecodeRequest(ids=[self.numbers[self.taken - 1]])

    async def answer(self, message: pb.DecodeRequest, size: int) -> pb.DecodeResponse:
        (number,) = message.ids
        self.begun.append(number)
        if self.under_way >= self.room:
            raise Overloaded("full", retry_after=1.0)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            for _ in range(20):
                await asyncio.sleep(0)
            if number in self.holds:
                await self.holds[number].wait()
            if self.errors:
                raise self.errors.pop(0)
            if number in self.bad:
                raise InvalidInput(f"texts[0] is bad: {number}", field="texts[0]")
            return pb.DecodeResponse(text=str(number))
        finally:
            self.under_way -= 1

    async def offload(self, size: int, work: Callable[[Any], bytes], argument: Any) -> bytes:
        return work(argument)

    async def write(self, reply: bytes) -> None:
        self.replies.append(int(pb.DecodeResponse.FromString(reply).text))

    async def run(self) -> None:
        frontend: Any = SimpleNamespace(calls=self.calls, pipeline=SimpleNamespace(offload=self.offload))
        with self.calls.stream(HERE) as stream:
            replies = Replies(self.write, lambda _: None)
            await MessageStream[pb.DecodeRequest](frontend, self.answer, HERE, stream, replies).run(self)

    @property
    def left(self) -> tuple[int, int, int]:
        """Calls, streams and bytes that are still held."""
        return self.under_way, self.admission.streams, self.admission.size


async def settled() -> None:
    """Everybody who can go on has."""
    for _ in range(4000):
        await asyncio.sleep(0)


async def test_every_message_is_answered_once_and_in_order() -> None:
    """Many at a time; one that comes alone is not kept waiting."""
    caller = Caller(*range(400))
    await caller.run()
    assert caller.replies == caller.begun == list(range(400))
    assert caller.most_under_way > 10
    alone = Caller(7)
    alone.more.clear()
    running = asyncio.create_task(alone.run())
    await settled()
    assert alone.replies == [7]
    alone.more.set()
    await running
    assert caller.left == alone.left == (0, 0, 0)


@pytest.mark.parametrize(("size", "begun"), [(1, REQUESTS), (REQUEST_BYTES // 4, 4), (4 * REQUEST_BYTES, 1)])
async def test_what_is_computed_early_waits_for_its_turn(size: int, begun: int) -> None:
    """No more is read meanwhile than a stream may hold, by messages and by bytes; what waits counts."""
    caller = Caller(*range(600), size=size)
    caller.holds = {0: asyncio.Event()}
    running = asyncio.create_task(caller.run())
    await settled()
    assert (caller.replies, caller.taken) == ([], begun)
    assert size <= caller.admission.size <= size + 8 * begun  # replies that wait for the first one
    caller.holds[0].set()
    await running
    assert caller.replies == list(range(600))


@pytest.mark.parametrize("place", [0, 1, 299])
async def test_the_first_error_ends_the_stream_after_the_answers_before_it(place: int) -> None:
    """It is that of its own message, though others failed before; nothing behind it is answered."""
    caller = Caller(*range(300))
    caller.bad, caller.holds = {place, 299}, {0: asyncio.Event()}
    caller.more.clear()  # the caller may never end by itself
    running = asyncio.create_task(caller.run())
    await settled()
    assert not running.done()
    caller.holds[0].set()
    with pytest.raises(InvalidInput, match=f"bad: {place}$"):
        await running
    assert (caller.replies, caller.left) == (list(range(place)), (0, 0, 0))


async def test_what_is_no_fault_of_a_message_ends_the_stream_as_it_is() -> None:
    """It is not tried again."""
    caller = Caller(*range(60))
    caller.errors = [WorkerUnavailable("gone")]
    with pytest.raises(WorkerUnavailable, match="gone"):
        await caller.run()
    assert caller.errors == []


@pytest.mark.parametrize("room", [1, 3])
@in_no_time
async def test_a_stream_does_not_refuse_itself(room: int) -> None:
    """A message that finds no room is asked again when all before it are answered."""
    caller = Caller(*range(60))
    caller.room = room
    await caller.run()
    assert (caller.replies, caller.most_under_way) == (list(range(60)), room)


@in_no_time
async def test_where_others_leave_no_room_a_message_waits() -> None:
    """As long as a request may take to arrive; then its refusal ends the stream, and all that was held is free."""
    caller = Caller(*range(40))
    caller.errors = [Overloaded("full", retry_after=0.5)] * 50
    await caller.run()
    assert caller.replies == list(range(40))
    longer = Caller(*range(40))
    longer.errors = [Overloaded("full", retry_after=0.5)] * 10_000
    with pytest.raises(Overloaded):
        await longer.run()
    assert (longer.replies, longer.left) == ([], (0, 0, 0))


@in_no_time
async def test_the_first_in_line_does_not_wait_for_replies_that_wait_for_it() -> None:
    """Replies behind it take all the room there is until it is answered."""
    caller = Caller(0, 1, 2, bounds=Bounds(size=100))
    room, answer = caller.admission, caller.answer

    async def reserving(message: pb.DecodeRequest, size: int) -> pb.DecodeResponse:
        if message.ids == [0]:
            await eventually(lambda: room.size >= 80)  # the others are answered first
        room.reserve(40)
        return pb.DecodeResponse(text=(await answer(message, size)).text.zfill(38))

    caller.answer = reserving  # type: ignore[method-assign]
    await caller.run()
    assert (caller.replies, caller.left) == ([0, 1, 2], (0, 0, 0))


async def test_a_large_message_does_not_wait_in_memory() -> None:
    """It ends the stream where others leave no room for its answer, or hold too many bytes when it comes."""
    caller = Caller(1, 2, size=REQUEST_BYTES + 1)
    caller.errors = [Overloaded("full", retry_after=0.01)]
    with pytest.raises(Overloaded, match="full"):
        await caller.run()
    other = Caller(1, 2, 3, bounds=Bounds(size=2 * REQUEST_BYTES), size=REQUEST_BYTES + 1)
    with other.admission.stream(), other.admission.hold(REQUEST_BYTES), pytest.raises(Overloaded):
        await other.run()
    assert (other.begun, other.admission.size) == ([], 0)


async def test_streams_together_answer_half_of_what_may_be_answered() -> None:
    """A message counts as a request."""
    caller = Caller(*range(100), bounds=Bounds(requests=2))
    await caller.run()
    assert (caller.most_under_way, caller.replies) == (1, list(range(100)))


SIZE = 1000
LIMITS = replace(Limits(), documents=50, message_bytes=100 * SIZE)


class Gathered:
    """Sends `count` messages of `SIZE` bytes each, as it is told, and ends if `ends`."""

    def __init__(self, count: int, *, bounds: Bounds | None = None, pause: float = 0.0, ends: bool = True) -> None:
        self.count, self.pause, self.ends, self.sent = count, pause, ends, 0
        self.admission = Admission(bounds or Bounds())
        self.size = SIZE

    async def __anext__(self) -> pb.RerankStreamRequest:
        await asyncio.sleep(self.pause)
        if self.sent == self.count:
            if not self.ends:
                await asyncio.Event().wait()
            raise StopAsyncIteration
        self.sent += 1
        return pb.RerankStreamRequest(query="q", text=f"text {self.sent}")

    async def run(self, limits: Limits = LIMITS) -> pb.RerankRequest:
        with self.admission.stream() as stream, self.admission.holding() as held:
            return await RerankGathering(self.admission, stream, limits, held).gather(self)

    @property
    def left(self) -> tuple[int, int]:
        """Bytes and streams that are still held."""
        return self.admission.size, self.admission.streams


@pytest.mark.parametrize(
    ("limits", "named"),
    [(LIMITS, "documents"), (replace(LIMITS, message_bytes=10 * SIZE), "the request has more than 10000 bytes")],
)
async def test_what_a_rerank_may_not_hold_is_refused_as_it_comes(limits: Limits, named: str) -> None:
    caller = Gathered(1000)
    with pytest.raises(LimitExceeded, match=named):
        await caller.run(limits)
    assert caller.left == (0, 0)


async def test_others_that_gather_leave_no_room() -> None:
    small = Bounds(size=5 * SIZE)
    alone = Gathered(20, bounds=small)
    assert len((await alone.run()).texts) == 20
    caller = Gathered(20, bounds=small)
    with caller.admission.holding() as other:
        other.add(4 * SIZE)
        with pytest.raises(Overloaded, match="others hold"):
            await caller.run()
    assert caller.left == (0, 0)


@in_no_time
async def test_slow_messages_are_waited_for_and_none_for_long_is_not() -> None:
    bounds = Bounds(read_seconds=0.2)
    assert len((await Gathered(6, bounds=bounds, pause=0.05).run()).texts) == 6
    caller = Gathered(2, bounds=bounds, ends=False)
    with pytest.raises(DeadlineExceeded, match="did not arrive within"):
        await caller.run()
    assert caller.left == (0, 0)

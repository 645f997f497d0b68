"""Many messages that become one Rerank: what they may hold, and how gathering ends."""

import asyncio
from dataclasses import replace

import pytest

from frontend_service.api.tei_v1.tei_servicers import RerankGathering
from frontend_service.domain.limits import Limits
from shared.errors import DeadlineExceeded, InvalidInput, LimitExceeded, Overloaded, WorkerUnavailable
from shared.server.admission import Admission, Bounds
from support.clockwork import in_no_time
from tei.v1 import tei_pb2 as pb

SIZE = 1000
LIMITS = replace(Limits(), documents=50, message_bytes=100 * SIZE)


class Caller:
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


async def test_all_messages_are_one_request() -> None:
    caller = Caller(50)
    assert list((await caller.run()).texts) == [f"text {number}" for number in range(1, 51)]
    assert caller.left == (0, 0)


async def test_no_message_is_no_request() -> None:
    with pytest.raises(InvalidInput, match="without a message"):
        await Caller(0).run()


@pytest.mark.parametrize(
    ("limits", "named"),
    [(LIMITS, "documents"), (replace(LIMITS, message_bytes=10 * SIZE), "the request has more than 10000 bytes")],
)
async def test_what_a_rerank_may_not_hold_is_refused_as_it_comes(limits: Limits, named: str) -> None:
    caller = Caller(1000)
    with pytest.raises(LimitExceeded, match=named):
        await caller.run(limits)
    assert caller.left == (0, 0)


async def test_others_that_gather_leave_no_room() -> None:
    small = Bounds(size=5 * SIZE)
    alone = Caller(20, bounds=small)
    assert len((await alone.run()).texts) == 20
    caller = Caller(20, bounds=small)
    with caller.admission.holding() as other:
        other.add(4 * SIZE)
        with pytest.raises(Overloaded, match="others hold"):
            await caller.run()
    assert caller.left == (0, 0)


@in_no_time
async def test_slow_messages_are_waited_for_and_none_for_long_is_not() -> None:
    bounds = Bounds(read_seconds=0.2)
    assert len((await Caller(6, bounds=bounds, pause=0.05).run()).texts) == 6
    caller = Caller(2, bounds=bounds, ends=False)
    with pytest.raises(DeadlineExceeded, match="did not arrive within"):
        await caller.run()
    assert caller.left == (0, 0)


async def test_a_drain_and_a_caller_that_goes_end_it() -> None:
    for drains in (True, False):
        caller = Caller(3, ends=False)
        running = asyncio.create_task(caller.run())
        while caller.sent < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        if drains:
            caller.admission.end_streams(WorkerUnavailable("draining"))
        else:
            running.cancel()
        with pytest.raises(WorkerUnavailable if drains else asyncio.CancelledError):
            await running
        assert caller.left == (0, 0)

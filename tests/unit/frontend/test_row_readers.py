"""Readers of one text's token rows: what becomes of their streams, and of others, while they do not read."""

import asyncio
from typing import Any

import pytest
from test_row_parts import ROW_BYTES, RowWorker, batch, replies_to, rows_in
from test_row_parts import small_parts as small_parts

from frontend_service.api.streams.two_way_stream import NotRead
from selvage.v1.embedding_pb2 import EmbedStreamResponse
from shared.caller import Caller
from shared.server.admission import Bounds
from shared.server.calls import Calls
from support.references import eventually


class DueCalls(Calls):
    """Calls without a time limit until the deadline of the first one passes."""

    def __init__(self, **bounds: Any) -> None:
        super().__init__(timeout=60, bounds=Bounds(**bounds))
        self._limits = list[asyncio.Timeout]()

    def timeout(self, caller: Caller) -> asyncio.Timeout:
        self._limits.append(asyncio.timeout(None))
        return self._limits[-1]

    def pass_deadline(self) -> None:
        self._limits[0].reschedule(asyncio.get_running_loop().time())


@pytest.mark.parametrize("stays_open", [False, True])
async def test_a_stream_ends_with_an_error_where_its_caller_stops_reading(stays_open: bool) -> None:
    """Even if the deadline passes while some rows are written. It does not end well, or never, without an outcome."""
    calls, seen = DueCalls(read_seconds=0.2), list[EmbedStreamResponse]()

    async def stop_reading(reply: EmbedStreamResponse) -> None:
        seen.append(reply)
        if len(seen) == 3:
            calls.pass_deadline()
            await asyncio.get_running_loop().create_future()

    with pytest.raises(NotRead, match=r"no reply was read for 0\.2 s"):
        await replies_to(RowWorker(), batch(7, 598), on_reply=stop_reading, calls=calls, stays_open=stays_open)
    assert len(seen) == 3


async def test_a_caller_that_reads_again_after_the_deadline_gets_the_outcome() -> None:
    """Once, behind the rows that were written; other batches are answered, and no slot is lost or won."""
    calls = DueCalls(requests=4)

    async def read_late(reply: EmbedStreamResponse) -> None:
        if reply.first_row == 20:
            calls.pass_deadline()
            await eventually(lambda: not calls.admission.requests)

    replies = await replies_to(RowWorker(), batch(7, 598), batch(8, 5, 6), on_reply=read_late, calls=calls)
    ours = [reply for reply in replies if reply.id == 7]
    assert [reply.more for reply in ours] == [True, True, True, False]
    assert ours[-1].error.reason == "DEADLINE_EXCEEDED"
    assert [reply.WhichOneof("outcome") for reply in replies if reply.id == 8] == ["response"]
    assert calls.admission.stream_requests._value == 2


async def test_a_slow_reader_holds_up_no_other_stream() -> None:
    """Where a single call of streams may be computed. A text goes on when its turn comes again."""
    calls = Calls(timeout=60, bounds=Bounds(requests=2))
    stalled, may_read, seen = asyncio.Event(), asyncio.Event(), list[EmbedStreamResponse]()

    async def stall(reply: EmbedStreamResponse) -> None:
        seen.append(reply)
        stalled.set()
        await may_read.wait()

    running = asyncio.create_task(replies_to(RowWorker(), batch(7, 598), on_reply=stall, calls=calls))
    await stalled.wait()
    [other] = await replies_to(RowWorker(), batch(8, 5, 6), calls=calls)
    assert other.WhichOneof("outcome") == "response"
    async with calls.admission.stream_requests:
        may_read.set()
        for _ in range(1000):
            await asyncio.sleep(0)
        assert len(seen) == 1
    replies = await running
    assert sum(len(rows_in(reply)) for reply in replies) == 600
    assert calls.admission.stream_requests._value == 1


@pytest.mark.parametrize(("chunk_tokens", "rows"), [(0, 600), (1000, 600), (50, 200)])
async def test_the_bytes_that_may_come_at_once_are_reserved(chunk_tokens: int, rows: int) -> None:
    """All of a text that its worker does not cut; else those that may wait, and two pieces."""
    reserved = list[int]()
    await replies_to(RowWorker(chunk_tokens=chunk_tokens), batch(7, 598), reserve=reserved.append)
    assert reserved == [rows * ROW_BYTES]

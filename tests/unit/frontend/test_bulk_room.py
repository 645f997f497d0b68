"""Batches of streams beside one another: how many at once, and what is held for how long."""

import asyncio
import gc

import pytest
from batches import Counted, batch, through
from test_service import service

from frontend_service.api.selvage_v1 import embed_stream
from frontend_service.api.selvage_v1.embed_rpcs import EmbedReply
from frontend_service.frontend import Frontend
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedResponse, EmbedStreamResponse
from shared.caller import Caller
from shared.errors import Overloaded, ResultTooLarge, SelvageError, WorkerUnavailable
from shared.server.admission import Bounds
from shared.server.calls import Calls
from support.references import eventually


async def test_a_stream_does_not_refuse_itself() -> None:
    """What is too much at once comes one after the other, within what is left of the stream's own time."""
    counted = Counted(at_once=3)
    replies = await through(counted.embed, *(batch(number, "a") for number in range(40)))
    assert sorted(reply.id for reply in replies) == list(range(40))
    assert all(reply.HasField("response") for reply in replies)
    assert counted.refused < 3 * 40
    assert counted.remaining[0] > counted.remaining[-1] > 300


async def test_streams_together_are_answered_half_of_what_may_be_at_once() -> None:
    """They wait for one another, and leave the others' half; what is read by its caller holds no place."""
    frontend = Frontend(service()[0], Calls(timeout=60, bounds=Bounds(requests=8)))
    running = most = 0

    async def embed(request: EmbedRequest, size: int, caller: Caller) -> EmbedReply:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return EmbedReply(EmbedResponse())

    unread = asyncio.Event()

    async def wait(_: bytes) -> None:
        await unread.wait()

    many = [batch(number, "a") for number in range(20)]
    slow = asyncio.create_task(through(embed, *many, frontend=frontend, write=wait))
    found = await asyncio.gather(*(through(embed, *many, frontend=frontend) for _ in range(3)))
    assert [len(replies) for replies in found] == [20] * 3
    assert most == 4
    unread.set()
    await slow


async def test_a_slow_reader_of_parts_holds_back_only_itself() -> None:
    """What of its batch is not computed yet leaves the room of others, and what is computed is no longer held."""
    frontend = Frontend(service()[0], Calls(timeout=60, bounds=Bounds(size=2000)))
    admission, reads = frontend.calls.admission, asyncio.Event()

    async def embed(request: EmbedRequest, size: int, caller: Caller) -> EmbedReply:
        if len(request.texts) > 1:
            raise ResultTooLarge("too large")
        return EmbedReply(EmbedResponse())

    async def write(_: bytes) -> None:
        await reads.wait()

    large = batch(1, *["a" * 100] * 9)
    slow = asyncio.create_task(through(embed, large, frontend=frontend, write=write))
    await eventually(lambda: 700 < admission.size < large.ByteSize())
    with admission.hold(1000):
        pass
    reads.set()
    await slow
    assert admission.size == 0


@pytest.mark.parametrize("error", [None, ResultTooLarge, Overloaded])
async def test_nothing_of_a_batch_is_held_while_its_last_reply_waits(error: type[SelvageError] | None) -> None:
    """However it was answered: nobody may read it for long."""

    async def embed(request: EmbedRequest, size: int, caller: Caller) -> EmbedReply:
        if error is not None:
            raise error("for a reason")
        if len(request.texts) > 2:
            raise ResultTooLarge("too large")
        return EmbedReply(EmbedResponse())

    def parts() -> list[object]:
        return [each for each in gc.get_objects() if type(each) is embed_stream.BatchPart]

    held, others = list[int](), parts()  # those of other tests, which are kept, so that they are always as many

    async def write(_: bytes) -> None:
        held.append(len(parts()) - len(others))

    await through(embed, batch(1, *"abcd" if error is None else "a"), write=write)
    assert held == ([1, 0] if error is None else [0])


async def test_abandoned_streams_leave_no_place_taken() -> None:
    """Whether their batches were begun or not."""
    frontend = Frontend(service()[0], Calls(timeout=60, bounds=Bounds(requests=8)))

    async def never(request: EmbedRequest, size: int, caller: Caller) -> EmbedReply:
        await asyncio.Event().wait()
        raise AssertionError("not reached")

    for turns in range(40):
        stream = asyncio.create_task(through(never, *(batch(number, "a") for number in range(9)), frontend=frontend))
        for _ in range(turns):
            await asyncio.sleep(0)
        stream.cancel()
        await asyncio.wait([stream])
    admission = frontend.calls.admission
    assert (admission.requests, admission.size, admission.streams) == (0, 0, 0)
    replies = await through(Counted(at_once=9).embed, batch(1, "a"), frontend=frontend)
    assert replies[0].HasField("response")


async def test_a_drain_waits_for_what_was_read() -> None:
    """For all parts of it, which are calls one after the other."""
    frontend = Frontend(service()[0], Calls(timeout=60))
    replies, begun = list[EmbedStreamResponse](), asyncio.Event()

    async def embed(request: EmbedRequest, size: int, caller: Caller) -> EmbedReply:
        begun.set()
        await asyncio.sleep(0.001)
        if len(request.texts) > 1:
            raise ResultTooLarge("too large")
        return EmbedReply(EmbedResponse())

    async def write(reply: bytes) -> None:
        await asyncio.sleep(0.001)
        replies.append(EmbedStreamResponse.FromString(reply))

    stream = asyncio.create_task(through(embed, batch(1, *"abcdefgh"), frontend=frontend, write=write))
    await begun.wait()
    frontend.calls.end_streams()
    await frontend.calls.idle()
    assert [reply.start for reply in replies] == list(range(8))
    with pytest.raises(WorkerUnavailable, match="draining"):
        await stream


async def test_what_others_fill_is_told() -> None:
    """Each batch once the others of its stream are done with."""
    replies = await through(Counted(at_once=0).embed, *(batch(number, "a") for number in range(5)))
    assert sorted(reply.id for reply in replies) == list(range(5))
    assert {reply.error.reason for reply in replies} == {"OVERLOADED"}

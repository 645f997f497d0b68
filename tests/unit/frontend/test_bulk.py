"""Batches of a stream: each its own outcome, in parts where its reply would be too large."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from fakes import FakeWorker
from google.rpc.code_pb2 import Code
from test_service import service

from frontend_service.doors.both_ways import Replies
from frontend_service.doors.selvage_v1 import bulk
from frontend_service.doors.selvage_v1.bulk import Bulk, Embed
from frontend_service.doors.selvage_v1.codec import embedding, fields
from frontend_service.exchange import Exchange
from frontend_service.frontend import Frontend
from frontend_service.limits import Limits
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedResponse, EmbedStreamRequest, EmbedStreamResponse
from shared.admission import Bounds
from shared.caller import Caller
from shared.calls import Calls
from shared.errors import Internal, Overloaded, ResultTooLarge, SelvageError, WorkerUnavailable

HERE = Caller(method="/selvage.v1.EmbeddingService/EmbedStream", request_id="mine", remaining=60.0)


class Batches:
    """Come one after the other."""

    def __init__(self, *batches: EmbedStreamRequest) -> None:
        self._batches = iter(batches)
        self.size = 0

    async def __anext__(self) -> EmbedStreamRequest:
        await asyncio.sleep(0)
        for each in self._batches:
            self.size = each.ByteSize()
            return each
        raise StopAsyncIteration


async def through(
    embed: Embed,
    *batches: EmbedStreamRequest,
    frontend: Frontend | None = None,
    write: Callable[[bytes], Awaitable[None]] | None = None,
) -> list[EmbedStreamResponse]:
    """All replies."""
    replies = list[EmbedStreamResponse]()

    async def keep(reply: bytes) -> None:
        replies.append(EmbedStreamResponse.FromString(reply))

    frontend = frontend or Frontend(service()[0], Calls(timeout=60))
    with frontend.calls.stream(HERE) as stream:
        replies_of = Replies(write or keep, lambda _: None)
        await Bulk(frontend, embed, HERE, stream, replies_of).run(Batches(*batches))
    return replies


async def answered(
    *batches: EmbedStreamRequest, limits: Limits | None = None, **changes: Any
) -> tuple[list[EmbedStreamResponse], FakeWorker]:
    """All replies, and the worker."""
    made, worker = service(limits, **changes)
    frontend = Frontend(made, Calls(timeout=60))
    exchange = Exchange(read=embedding.embed_request, ask=frontend.embedding.embed, write=embedding.embed_response)

    async def embed(request: EmbedRequest, size: int, caller: Caller) -> EmbedResponse:
        reply, timing = await frontend.exchange(exchange, request, size, caller)
        reply.timing.CopyFrom(fields.timing_to_pb(timing))
        return reply

    return await through(embed, *batches, frontend=frontend), worker


def batch(identity: int, *texts: str, **options: Any) -> EmbedStreamRequest:
    return EmbedStreamRequest(id=identity, request=EmbedRequest(texts=texts, **options))


async def test_each_batch_has_its_own_outcome() -> None:
    """A bad one between good ones is named, with its field, and loses nothing else."""
    replies, worker = await answered(batch(7, "a"), batch(8, "a", "b " * 50), batch(9, "a", "b"))
    found = {reply.id: reply for reply in replies}
    assert set(found) == {7, 8, 9}
    assert [found[each].response.dense.count for each in (7, 9)] == [1, 2]
    error = found[8].error
    assert (error.code, error.reason, error.field) == (Code.INVALID_ARGUMENT, "INPUT_TOO_LONG", "texts[1]")
    assert not error.HasField("retry_after")
    assert len(worker.jobs) == 2
    assert not any(reply.more for reply in replies)


async def test_a_reply_too_large_for_a_message_comes_in_parts() -> None:
    """In the order of the texts; the last says so. What is refused for another reason is not tried in halves."""
    limits = Limits(message_bytes=70_000)
    texts = [" ".join("a" * (100 + number)) for number in range(12)]  # a row of 32 bytes a token
    replies, worker = await answered(batch(5, *texts, outputs=[3]), limits=limits, max_tokens=1000)
    assert [reply.start for reply in replies] == sorted({reply.start for reply in replies})
    assert replies[0].start == 0
    assert [reply.more for reply in replies] == [True] * (len(replies) - 1) + [False]
    assert len(replies) > 1
    asked = [length for job in worker.jobs for length in job.tokens.lengths]
    assert asked == [len(text.split()) + 2 for text in texts]
    assert np.cumsum([0, *(len(job.tokens) for job in worker.jobs)])[:-1].tolist() == [each.start for each in replies]


async def test_one_text_too_large_for_a_message_is_an_error_after_the_parts_before_it() -> None:
    """At its place."""
    limits = Limits(message_bytes=70_000)
    texts = [" ".join("a" * 100), " ".join("a" * 3000)]
    replies, _ = await answered(batch(5, *texts, outputs=[3]), limits=limits, max_tokens=10_000)
    assert [(reply.start, reply.more, reply.WhichOneof("outcome")) for reply in replies] == [
        (0, True, "response"),
        (1, False, "error"),
    ]
    assert replies[1].error.reason == "RESULT_TOO_LARGE"


class Counted:
    """Embeds nothing; refuses while more than `at_once` are under way, as a full frontend does."""

    def __init__(self, at_once: int) -> None:
        self.at_once, self.running, self.refused = at_once, 0, 0
        self.remaining = list[float]()

    async def embed(self, request: EmbedRequest, size: int, caller: Caller) -> EmbedResponse:
        assert caller.remaining is not None
        self.remaining.append(caller.remaining)
        if self.running >= self.at_once:
            self.refused += 1
            raise Overloaded("full", retry_after=1.0)
        self.running += 1
        try:
            await asyncio.sleep(0.01)
        finally:
            self.running -= 1
        return EmbedResponse(model=request.model)


async def test_a_stream_does_not_refuse_itself() -> None:
    """What is too much at once comes one after the other, within what is left of the stream's own time."""
    counted = Counted(at_once=3)
    replies = await through(counted.embed, *(batch(number, "a") for number in range(40)))
    assert sorted(reply.id for reply in replies) == list(range(40))
    assert all(reply.HasField("response") for reply in replies)
    assert counted.refused < 3 * 40
    assert counted.remaining[0] > counted.remaining[-1] > 50


async def test_streams_together_are_answered_half_of_what_may_be_at_once() -> None:
    """They wait for one another, and leave the others' half; what is read by its caller holds no place."""
    frontend = Frontend(service()[0], Calls(timeout=60, bounds=Bounds(requests=8)))
    running = most = 0

    async def embed(request: EmbedRequest, size: int, caller: Caller) -> EmbedResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return EmbedResponse()

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
    frontend = Frontend(service()[0], Calls(timeout=60, bounds=Bounds(size=1000)))
    admission, reads = frontend.calls.admission, asyncio.Event()

    async def embed(request: EmbedRequest, size: int, caller: Caller) -> EmbedResponse:
        if len(request.texts) > 1:
            raise ResultTooLarge("too large")
        return EmbedResponse()

    async def write(_: bytes) -> None:
        await reads.wait()

    large = batch(1, *["a" * 100] * 9)
    slow = asyncio.create_task(through(embed, large, frontend=frontend, write=write))
    await asyncio.sleep(0.01)
    assert 700 < admission.size < large.ByteSize()
    with admission.hold(1000):
        pass
    reads.set()
    await slow
    assert admission.size == 0


@pytest.mark.parametrize("error", [None, ResultTooLarge, Overloaded])
async def test_nothing_of_a_batch_is_held_while_its_last_reply_waits(error: type[SelvageError] | None) -> None:
    """However it was answered: nobody may read it for long."""

    async def embed(request: EmbedRequest, size: int, caller: Caller) -> EmbedResponse:
        if error is not None:
            raise error("for a reason")
        if len(request.texts) > 2:
            raise ResultTooLarge("too large")
        return EmbedResponse()

    held = list[int]()

    async def write(_: bytes) -> None:
        held.append(sum(type(each) is bulk._Part for each in gc.get_objects()))

    await through(embed, batch(1, *"abcd" if error is None else "a"), write=write)
    assert held == ([1, 0] if error is None else [0])


async def test_abandoned_streams_leave_no_place_taken() -> None:
    """Whether their batches were begun or not."""
    frontend = Frontend(service()[0], Calls(timeout=60, bounds=Bounds(requests=8)))

    async def never(request: EmbedRequest, size: int, caller: Caller) -> EmbedResponse:
        await asyncio.Event().wait()
        raise AssertionError("not reached")

    for turns in range(40):
        stream = asyncio.create_task(through(never, *(batch(number, "a") for number in range(9)), frontend=frontend))
        for _ in range(turns):
            await asyncio.sleep(0)
        stream.cancel()
        await asyncio.wait([stream])
    admission = frontend.calls.admission
    assert (admission.requests, admission.size, admission.results, len(admission.streams)) == (0, 0, 0, 0)
    replies = await through(Counted(at_once=9).embed, batch(1, "a"), frontend=frontend)
    assert replies[0].HasField("response")


async def test_a_drain_waits_for_what_was_read() -> None:
    """For all parts of it, which are calls one after the other."""
    frontend = Frontend(service()[0], Calls(timeout=60))
    replies, begun = list[EmbedStreamResponse](), asyncio.Event()

    async def embed(request: EmbedRequest, size: int, caller: Caller) -> EmbedResponse:
        begun.set()
        await asyncio.sleep(0.001)
        if len(request.texts) > 1:
            raise ResultTooLarge("too large")
        return EmbedResponse()

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


async def test_a_bug_ends_its_batch_alone() -> None:
    """As INTERNAL, without a word of it."""

    async def embed(request: EmbedRequest, size: int, caller: Caller) -> EmbedResponse:
        if request.texts[0] == "bad":
            raise ZeroDivisionError("a secret")
        return EmbedResponse()

    replies = {reply.id: reply for reply in await through(embed, batch(1, "good"), batch(2, "bad"), batch(3, "good"))}
    assert [replies[each].WhichOneof("outcome") for each in (1, 2, 3)] == ["response", "error", "response"]
    assert replies[2].error.code == Code.INTERNAL
    assert "secret" not in replies[2].error.message


async def test_a_bug_outside_of_batches_is_internal() -> None:
    """The stream ends with it."""

    async def write(reply: bytes) -> None:
        raise ZeroDivisionError("a secret")

    with pytest.raises(Internal) as raised:
        await through(Counted(at_once=1).embed, batch(1, "a"), write=write)
    assert "secret" not in str(raised.value)


def test_token_ids_are_halved_as_texts_are() -> None:
    """With all options."""
    message = EmbedRequest(dimensions=4)
    for number in range(3):
        message.tokenized.add(ids=[number])
    (first, one), (second, two) = embedding.halves(message)
    assert (first, second, [each.ids[0] for each in two.tokenized]) == (0, 1, [1, 2])
    assert (one.dimensions, len(one.tokenized), len(message.tokenized)) == (4, 1, 3)


def test_an_error_says_when_to_try_again() -> None:
    """In the message itself: a stream has one set of trailers."""
    told = embedding.stream_error(Overloaded("full", retry_after=1.5))
    assert (told.code, told.reason, told.retry_after.ToTimedelta().total_seconds()) == (
        Code.RESOURCE_EXHAUSTED,
        "OVERLOADED",
        1.5,
    )

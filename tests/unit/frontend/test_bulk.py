"""Batches of a stream: each its own outcome, in parts where its reply is too large; what is held, and for how long."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes import FakeWorker, service
from google.rpc.code_pb2 import Code
from structlog.testing import capture_logs

from frontend_service.api.selvage_v1 import embed_stream
from frontend_service.api.selvage_v1.embed_rpcs import EmbeddingServicer, EmbedReply
from frontend_service.api.selvage_v1.embed_stream import BatchStream, Embed
from frontend_service.api.streams import Replies
from frontend_service.domain.limits import ENVELOPE_BYTES, Limits
from frontend_service.frontend import Frontend
from selvage.v1.embedding_pb2 import (
    EmbedRequest,
    EmbedResponse,
    EmbedStreamRequest,
    EmbedStreamResponse,
    Spans,
    TokenIds,
)
from shared.caller import TERMS, Caller
from shared.errors import Internal, Overloaded, ResultTooLarge, SelvageError, WorkerUnavailable
from shared.server.admission import Bounds
from shared.server.calls import Calls
from support.clockwork import in_no_time
from support.references import eventually

HERE = Caller(method="/selvage.v1.EmbeddingService/EmbedStream", request_id="mine", remaining=600.0)


class Batches:
    """Come one after the other."""

    def __init__(self, *batches: EmbedStreamRequest) -> None:
        self._batches = iter(batches)
        self.size = 0

    async def __anext__(self) -> EmbedStreamRequest:
        await asyncio.sleep(0)
        for request in self._batches:
            self.size = request.ByteSize()
            return request
        raise StopAsyncIteration


async def through(
    embed: Embed,
    *batches: EmbedStreamRequest,
    frontend: Frontend | None = None,
    write: Callable[[bytes], Awaitable[None]] | None = None,
    caller: Caller = HERE,
) -> list[EmbedStreamResponse]:
    """All replies."""
    replies = list[EmbedStreamResponse]()

    async def keep(reply: bytes) -> None:
        replies.append(EmbedStreamResponse.FromString(reply))

    frontend = frontend or Frontend(service()[0], Calls(timeout=60))
    with frontend.calls.stream(caller) as stream:
        replies_of = Replies(write or keep, lambda _: None)
        await BatchStream(frontend, embed, caller, stream, replies_of).run(Batches(*batches))
    return replies


async def answered(
    *batches: EmbedStreamRequest, limits: Limits | None = None, **changes: Any
) -> tuple[list[EmbedStreamResponse], FakeWorker]:
    """All replies, and the worker."""
    made, worker = service(limits, **changes)
    frontend = Frontend(made, Calls(timeout=60))
    return await through(EmbeddingServicer(frontend).embed, *batches, frontend=frontend), worker


def batch(identity: int, *texts: str, **options: Any) -> EmbedStreamRequest:
    return EmbedStreamRequest(id=identity, request=EmbedRequest(texts=texts, **options))


class Counted:
    """Embeds nothing; refuses while more than `at_once` are under way, as a full frontend does."""

    def __init__(self, at_once: int) -> None:
        self.at_once, self.running, self.refused = at_once, 0, 0
        self.remaining = list[float]()

    async def embed(self, request: EmbedRequest, size: int) -> EmbedReply:
        self.remaining.append(TERMS.get().deadline.remaining())
        if self.running >= self.at_once:
            self.refused += 1
            raise Overloaded("full", retry_after=1.0)
        self.running += 1
        try:
            await asyncio.sleep(0.01)
        finally:
            self.running -= 1
        return EmbedReply(EmbedResponse(model=request.model))


async def test_each_batch_has_its_own_outcome() -> None:
    """A bad one between good ones is named, with its field, and loses nothing else."""
    replies, worker = await answered(batch(7, "a"), batch(8, "a", "b " * 50), batch(9, "a", "b"))
    by_id = {reply.id: reply for reply in replies}
    assert set(by_id) == {7, 8, 9}
    assert [by_id[identity].response.dense.count for identity in (7, 9)] == [1, 2]
    error = by_id[8].error
    assert (error.code, error.reason, error.field) == (Code.INVALID_ARGUMENT, "INPUT_TOO_LONG", "texts[1]")
    assert not error.HasField("retry_after")
    assert len(worker.jobs) == 2
    assert not any(reply.more for reply in replies)


@pytest.mark.parametrize("tokenized", [False, True])
async def test_a_reply_too_large_for_a_message_comes_in_parts(tokenized: bool) -> None:
    """In the order of the texts; the last says so. What is refused for another reason is not tried in halves."""
    limits, counts = Limits(message_bytes=70_000), [100 + number for number in range(12)]  # a row of 32 bytes a token
    request = EmbedRequest(outputs=[3])
    if tokenized:
        request.tokenized.extend(TokenIds(ids=[4] * (count + 2)) for count in counts)
    else:
        request.texts.extend("a " * count for count in counts)
    replies, worker = await answered(EmbedStreamRequest(id=5, request=request), limits=limits, max_tokens=1000)
    starts = [reply.start for reply in replies]
    assert (starts[0], starts) == (0, sorted({*starts}))
    assert [reply.more for reply in replies] == [True] * (len(replies) - 1) + [False]
    assert len(replies) > 1
    assert [length for job in worker.jobs for length in job.tokens.lengths] == [count + 2 for count in counts]
    assert np.cumsum([0, *(len(job.tokens) for job in worker.jobs)])[:-1].tolist() == starts


async def test_a_bug_ends_its_batch_alone() -> None:
    async def embed(request: EmbedRequest, size: int) -> EmbedReply:
        if request.texts[0] == "bad":
            raise ZeroDivisionError("a secret")
        return EmbedReply(EmbedResponse())

    with capture_logs():  # to print a trace takes a second
        answers = await through(embed, batch(1, "good"), batch(2, "bad"), batch(3, "good"))
    replies = {reply.id: reply for reply in answers}
    assert [replies[identity].WhichOneof("outcome") for identity in (1, 2, 3)] == ["response", "error", "response"]
    assert replies[2].error.code == Code.INTERNAL
    assert "secret" not in replies[2].error.message


async def test_a_bug_outside_of_batches_is_internal() -> None:
    async def write(reply: bytes) -> None:
        raise ZeroDivisionError("a secret")

    with pytest.raises(Internal) as raised, capture_logs():
        await through(Counted(at_once=1).embed, batch(1, "a"), write=write)
    assert "secret" not in str(raised.value)


async def test_texts_are_halved_with_their_spans_and_the_chunks_of_a_document_stay_together() -> None:
    limits = Limits(message_bytes=ENVELOPE_BYTES + 4 * 32)  # four rows
    spans = [Spans(starts=[0] * count, ends=[1] * count) for count in (1, 2, 3)]
    halves, chunks = batch(1, *["a b"] * 3, spans=spans), batch(2, *["a "] * 6, late_chunking=True)
    replies, _ = await answered(halves, chunks, limits=limits, pools_spans=True)
    counts = [(reply.start, reply.response.dense.count) for reply in replies if reply.id == 1]
    assert counts == [(0, 1), (1, 2), (2, 3)]
    assert [reply.error.reason for reply in replies if reply.id == 2] == ["RESULT_TOO_LARGE"]


def test_an_error_says_when_to_try_again() -> None:
    """In the message itself: a stream has one set of trailers."""
    error = embed_stream.stream_error_to_pb(Overloaded("full", retry_after=1.5))
    assert (error.code, error.reason) == (Code.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert error.retry_after.ToTimedelta().total_seconds() == 1.5


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

    async def embed(request: EmbedRequest, size: int) -> EmbedReply:
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
    answers = await asyncio.gather(*(through(embed, *many, frontend=frontend) for _ in range(3)))
    assert [len(replies) for replies in answers] == [20] * 3
    assert most == 4
    unread.set()
    await slow


async def test_a_slow_reader_of_parts_holds_back_only_itself() -> None:
    """What of its batch is not computed yet leaves the room of others, and what is computed is no longer held."""
    frontend = Frontend(service()[0], Calls(timeout=60, bounds=Bounds(size=2000)))
    admission, reads = frontend.calls.admission, asyncio.Event()

    async def embed(request: EmbedRequest, size: int) -> EmbedReply:
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

    async def embed(request: EmbedRequest, size: int) -> EmbedReply:
        if error is not None:
            raise error("for a reason")
        if len(request.texts) > 2:
            raise ResultTooLarge("too large")
        return EmbedReply(EmbedResponse())

    def parts() -> list[object]:
        return [held for held in gc.get_objects() if type(held) is embed_stream.BatchPart]

    counts, others = list[int](), parts()  # those of other tests, which are kept, so that they are always as many

    async def write(_: bytes) -> None:
        counts.append(len(parts()) - len(others))

    await through(embed, batch(1, *"abcd" if error is None else "a"), write=write)
    assert counts == ([1, 0] if error is None else [0])


async def test_abandoned_streams_leave_no_place_taken() -> None:
    """Whether their batches were begun or not."""
    frontend = Frontend(service()[0], Calls(timeout=60, bounds=Bounds(requests=8)))

    async def never(request: EmbedRequest, size: int) -> EmbedReply:
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

    async def embed(request: EmbedRequest, size: int) -> EmbedReply:
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


TIMEOUT = 0.2
"""Seconds of a call that brings no deadline."""


@pytest.mark.parametrize(
    ("seconds", "remaining", "codes"),
    [
        (0.05, None, {Code.OK}),
        (0.15, TIMEOUT, {Code.OK, Code.DEADLINE_EXCEEDED}),
        (10.0, None, {Code.DEADLINE_EXCEEDED}),
    ],
    ids=["others are answered", "the stream has a deadline", "nothing is answered"],
)
@in_no_time
async def test_waiting_for_others_of_its_stream_is_not_held_against_a_batch(
    seconds: float, remaining: float | None, codes: set[int]
) -> None:
    """The default time counts anew when another one is answered. A deadline of the caller's own stays."""
    free = asyncio.Lock()

    async def embed(request: EmbedRequest, size: int) -> EmbedReply:
        async with free:
            await asyncio.sleep(seconds)
        return EmbedReply(EmbedResponse())

    frontend = Frontend(service()[0], Calls(timeout=TIMEOUT))
    replies = await through(
        embed,
        *(batch(number, str(number)) for number in range(12)),
        frontend=frontend,
        caller=replace(HERE, remaining=remaining),
    )
    assert sorted(reply.id for reply in replies) == list(range(12))
    assert {reply.error.code for reply in replies} == codes

"""Batches of a stream: each its own outcome, in parts where its reply would be too large."""

import numpy as np
import pytest
from batches import Counted, answered, batch, through
from google.rpc.code_pb2 import Code

from frontend_service.api.selvage_v1 import codec
from frontend_service.api.selvage_v1.codec import EmbedReply
from frontend_service.domain.limits import ENVELOPE_BYTES, Limits
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedResponse, EmbedStreamRequest, Spans, TokenIds
from shared.caller import Caller
from shared.errors import Internal, Overloaded


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
    async def embed(request: EmbedRequest, size: int, caller: Caller) -> EmbedReply:
        if request.texts[0] == "bad":
            raise ZeroDivisionError("a secret")
        return EmbedReply(EmbedResponse())

    replies = {reply.id: reply for reply in await through(embed, batch(1, "good"), batch(2, "bad"), batch(3, "good"))}
    assert [replies[identity].WhichOneof("outcome") for identity in (1, 2, 3)] == ["response", "error", "response"]
    assert replies[2].error.code == Code.INTERNAL
    assert "secret" not in replies[2].error.message


async def test_a_bug_outside_of_batches_is_internal() -> None:
    async def write(reply: bytes) -> None:
        raise ZeroDivisionError("a secret")

    with pytest.raises(Internal) as raised:
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
    told = codec.stream_error_to_pb(Overloaded("full", retry_after=1.5))
    assert (told.code, told.reason, told.retry_after.ToTimedelta().total_seconds()) == (
        Code.RESOURCE_EXHAUSTED,
        "OVERLOADED",
        1.5,
    )

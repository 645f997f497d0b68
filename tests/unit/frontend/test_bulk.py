"""Batches of a stream: each its own outcome, in parts where its reply would be too large."""

import numpy as np
import pytest
from batches import Counted, answered, batch, through
from google.rpc.code_pb2 import Code

from frontend_service.api.selvage_v1 import embed_stream
from frontend_service.api.selvage_v1.embed_rpcs import EmbedReply
from frontend_service.domain.limits import Limits
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedResponse
from shared.caller import Caller
from shared.errors import Internal, Overloaded


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


async def test_one_text_too_large_for_a_message_refuses_its_batch_before_anything_is_computed() -> None:
    """By its place in the batch, however many texts stand before it; another batch is answered."""
    limits = Limits(message_bytes=70_000)
    texts = [" ".join("a" * length) for length in (100, 90, 110, 3000, 80)]
    batches = batch(5, *texts, outputs=[3]), batch(6, *texts[:3], outputs=[3])
    replies, worker = await answered(*batches, limits=limits, max_tokens=10_000)
    [refused] = [reply for reply in replies if reply.id == 5]
    assert (refused.error.reason, refused.error.field) == ("RESULT_TOO_LARGE", "texts[3]")
    assert [length - 2 for job in worker.jobs for length in job.tokens.lengths] == [100, 90, 110]


async def test_a_bug_ends_its_batch_alone() -> None:
    async def embed(request: EmbedRequest, size: int, caller: Caller) -> EmbedReply:
        if request.texts[0] == "bad":
            raise ZeroDivisionError("a secret")
        return EmbedReply(EmbedResponse())

    replies = {reply.id: reply for reply in await through(embed, batch(1, "good"), batch(2, "bad"), batch(3, "good"))}
    assert [replies[each].WhichOneof("outcome") for each in (1, 2, 3)] == ["response", "error", "response"]
    assert replies[2].error.code == Code.INTERNAL
    assert "secret" not in replies[2].error.message


async def test_a_bug_outside_of_batches_is_internal() -> None:
    async def write(reply: bytes) -> None:
        raise ZeroDivisionError("a secret")

    with pytest.raises(Internal) as raised:
        await through(Counted(at_once=1).embed, batch(1, "a"), write=write)
    assert "secret" not in str(raised.value)


def test_token_ids_are_halved_as_texts_are() -> None:
    message = EmbedRequest(dimensions=4)
    for number in range(3):
        message.tokenized.add(ids=[number])
    (first, one), (second, two) = embed_stream.halve_request(message)
    assert (first, second, [each.ids[0] for each in two.tokenized]) == (0, 1, [1, 2])
    assert (one.dimensions, len(one.tokenized), len(message.tokenized)) == (4, 1, 3)


def test_an_error_says_when_to_try_again() -> None:
    """In the message itself: a stream has one set of trailers."""
    told = embed_stream.stream_error_to_pb(Overloaded("full", retry_after=1.5))
    assert (told.code, told.reason, told.retry_after.ToTimedelta().total_seconds()) == (
        Code.RESOURCE_EXHAUSTED,
        "OVERLOADED",
        1.5,
    )

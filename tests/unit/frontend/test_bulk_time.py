"""How long a batch of a stream may take."""

import asyncio
from dataclasses import replace

import pytest
from batches import HERE, batch, through
from google.rpc.code_pb2 import Code
from test_service import service

from frontend_service.api.selvage_v1.embed_rpcs import EmbedReply
from frontend_service.frontend import Frontend
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedResponse
from shared.caller import Caller
from shared.server.calls import Calls
from support.clockwork import in_no_time

TIMEOUT = 0.2
"""Seconds of a call that brings no deadline."""


class Queue:
    """Computes one batch after the other, each so many seconds; tells how often each was begun."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._free = seconds, asyncio.Lock()
        self.begun: list[str] = []

    async def embed(self, request: EmbedRequest, size: int, caller: Caller) -> EmbedReply:
        async with self._free:
            self.begun.append(request.texts[0])
            await asyncio.sleep(self._seconds)
        return EmbedReply(EmbedResponse(model="m"))


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
    queue = Queue(seconds)
    frontend = Frontend(service()[0], Calls(timeout=TIMEOUT))
    told = await through(
        queue.embed,
        *(batch(number, str(number)) for number in range(12)),
        frontend=frontend,
        caller=replace(HERE, remaining=remaining),
    )
    assert sorted(reply.id for reply in told) == list(range(12))
    assert {reply.error.code for reply in told} == codes

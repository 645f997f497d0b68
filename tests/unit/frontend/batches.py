"""Batches of a stream, and what answers them, for tests."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fakes import FakeWorker
from test_service import service

from frontend_service.api.selvage_v1.embed_rpcs import EmbeddingServicer, EmbedReply
from frontend_service.api.selvage_v1.embed_stream import BatchStream, Embed
from frontend_service.api.streams import Replies
from frontend_service.domain.limits import Limits
from frontend_service.frontend import Frontend
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedResponse, EmbedStreamRequest, EmbedStreamResponse
from shared.caller import Caller
from shared.errors import Overloaded
from shared.server.calls import Calls

HERE = Caller(method="/selvage.v1.EmbeddingService/EmbedStream", request_id="mine", remaining=600.0)


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

    async def embed(self, request: EmbedRequest, size: int, caller: Caller) -> EmbedReply:
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
        return EmbedReply(EmbedResponse(model=request.model))

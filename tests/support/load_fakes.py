"""Fakes for the load generator: a clock that only the test moves, targets and a server that answer as they are told."""

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import grpc

from benchmarks.load.loops import Call
from benchmarks.load.target import EMBED
from selvage.v1 import embedding_pb2


class Leap(selectors.DefaultSelector):
    """Does not wait: time leaps to the next thing that is due."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits, for nothing that is due"
        self.now += timeout
        return super().select(0)


def in_fake_time(calls: Coroutine[Any, Any, list[Call]]) -> list[Call]:
    """What a loop gives by a clock that starts at 1,000."""
    selector = Leap()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        return loop.run_until_complete(calls)
    finally:
        loop.close()


class FakeTarget:
    """Answers after so many seconds, by a status; notes how much was under way at once."""

    def __init__(self, seconds: float, status: str = "OK") -> None:
        self._seconds, self._status = seconds, status
        self.under_way = self.most = 0

    async def __call__(self, request: int) -> str:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(self._seconds)
        self.under_way -= 1
        return self._status


@asynccontextmanager
async def fake_server(answer: Callable[[int], str], tokens: int = 16) -> AsyncIterator[str]:
    """A server of Embed that answers call n with a status, "late" as where its deadline has passed; its address."""
    numbers = count()

    async def embed(request: bytes, context: Any) -> bytes:
        status = answer(next(numbers))
        if status == "late":
            assert context.time_remaining() > 0, "the call has a deadline"
            status = "DEADLINE_EXCEEDED"
        if status != "OK":
            await context.abort(grpc.StatusCode[status], "told to")
        reply = embedding_pb2.EmbedResponse(model="fake")
        reply.usage.prompt_tokens = tokens
        return reply.SerializeToString()

    service, _, name = EMBED.strip("/").partition("/")
    handlers = {name: grpc.unary_unary_rpc_method_handler(embed)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)

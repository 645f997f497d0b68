"""Streams of tei.v1: each message is a request, answered in order; those of a RerankStream become one request."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from frontend_service.api.streams import REQUEST_BYTES, Replies, RequestStream, TwoWayStream
from frontend_service.api.tei_v1.messages import add_stream_text, begin_rerank_request
from frontend_service.application.frontend import Frontend
from frontend_service.domain.limits import Limits
from shared.caller import Caller
from shared.errors import InvalidInput, LimitExceeded, Overloaded, SelvageError
from shared.server.admission import Admission, Holding, OpenStream
from shared.terms import Deadline
from tei.v1 import tei_pb2 as pb

LEAST_PAUSE = 0.1
"""Shortest pause before a refused message is tried again, in seconds."""

M = TypeVar("M", bound=Message)
Answer = Callable[[M, int, Caller], Awaitable[Message]]
"""A function that answers a message of so many bytes."""


class MessageStream(Generic[M]):
    """Answers every message of a stream as a call of its own. The replies come in the order of the messages.

    The first error ends the stream, once all messages before it are answered.
    """

    def __init__(
        self, frontend: Frontend, answer: Answer[M], caller: Caller, stream: OpenStream, replies: Replies
    ) -> None:
        self._frontend, self._answer, self._caller, self._stream = frontend, answer, caller, stream
        self._deadline = None if caller.remaining is None else Deadline.after(caller.remaining)
        self._messages = TwoWayStream[M](frontend.calls.admission, stream, replies, self._answer_message)
        self._last_sent = asyncio.Event()  # the reply to the last message that was begun
        self._last_sent.set()

    async def run(self, messages: RequestStream[M]) -> None:
        """Reads and answers all messages. Raises the error of the first message that has one, or of the stream."""
        await self._messages.run(messages)

    async def _answer_message(self, message: M, size: int) -> None:
        before, self._last_sent = self._last_sent, asyncio.Event()
        sent = self._last_sent
        try:
            with self._frontend.calls.admission.holding() as held:
                (held.add if size > REQUEST_BYTES else held.force)(size)
                reply = await self._reply(message, size, before)
        except SelvageError:
            await before.wait()
            raise
        await self._messages.send(reply, after=before)
        sent.set()

    async def _reply(self, message: M, size: int, before: asyncio.Event) -> bytes:
        """The reply to a message, whose predecessors are all answered once `before` is set.

        A message that is refused for lack of room is tried again: its own stream may take the room, so first when all
        messages before it are answered, then after pauses. A large message does not wait in memory for that. The first
        one in line does not wait for the replies behind it, which wait for its own.
        """
        admission, paused = self._frontend.calls.admission, 0.0
        most = admission.bounds.read_seconds
        while True:
            try:
                with admission.beside(self._stream.results) if before.is_set() else nullcontext():
                    return await self._call(message, size)
            except Overloaded as error:
                if size > REQUEST_BYTES or paused > most:
                    raise
                seconds = max(error.retry_after or 0.0, LEAST_PAUSE)
            if not before.is_set():
                await before.wait()
                continue
            paused += seconds
            await asyncio.sleep(seconds)

    async def _call(self, message: M, size: int) -> bytes:
        calls, caller = self._frontend.calls, self._caller
        async with calls.admission.stream_requests:
            if self._deadline is not None:
                caller = replace(caller, remaining=self._deadline.remaining())
            with calls.running(caller):
                async with calls.timeout(caller):
                    reply = await self._answer(message, size, caller)
                    return await self._frontend.offload(calls.admission.reserved, _serialize, reply)


def _serialize(reply: Message) -> bytes:
    return reply.SerializeToString()


class RerankGathering:
    """Makes one request of all messages of a RerankStream. Their bytes are counted in `held`."""

    def __init__(self, admission: Admission, stream: OpenStream, limits: Limits, held: Holding) -> None:
        """`limits`: those of a Rerank; they are checked with every message."""
        self._limits, self._held, self._refusals = limits, held, admission.refusals
        self._seconds = admission.bounds.read_seconds
        self._messages = TwoWayStream[Any](admission, stream, Replies(_write_nothing, lambda _: None), self._add)
        self._request: pb.RerankRequest | None = None
        self._timeout: asyncio.Timeout

    async def gather(self, messages: RequestStream[pb.RerankStreamRequest]) -> pb.RerankRequest:
        """Returns the request that all messages are together.

        Raises InvalidInput where messages contradict each other, LimitExceeded where they are too many or too large,
        Overloaded where others hold too many bytes, DeadlineExceeded where no message comes for long.
        """
        try:
            async with asyncio.timeout(self._seconds) as self._timeout:
                await self._messages.run(messages)
        except TimeoutError:
            raise self._refusals.too_slow(self._seconds) from None
        if self._request is None:
            raise InvalidInput("the call ended without a message")
        return self._request

    async def _add(self, message: pb.RerankStreamRequest, size: int) -> None:
        self._timeout.reschedule(asyncio.get_running_loop().time() + self._seconds)
        if self._request is None:
            self._request = begin_rerank_request(message)
        self._held.add(size)
        if self._held.held > self._limits.message_bytes:
            raise LimitExceeded(f"the request has more than {self._limits.message_bytes} bytes")
        add_stream_text(self._request, message)
        self._limits.check_count(len(self._request.texts), "documents", self._limits.documents)


async def _write_nothing(_: bytes) -> None:
    """Writes nothing: the only reply is sent by the servicer, after the last message."""

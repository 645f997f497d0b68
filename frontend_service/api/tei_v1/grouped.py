"""Messages of tei.v1, answered one by one or many together, each group a call of its own to the service."""

import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from google.protobuf.message import Message

from frontend_service.api.streams.coalesced import CoalescedStream
from frontend_service.api.streams.two_way_stream import Replies, RequestStream
from frontend_service.api.tei_v1.codec.fields import options, put_times
from frontend_service.application.exchange import Exchange
from frontend_service.application.frontend import Frontend
from frontend_service.domain.answer import Answer, FinishedAnswer
from shared.caller import Caller
from shared.deadline import Deadline
from shared.server.admission.streams import OpenStream
from shared.terms import RequestTerms

M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Message)
Q = TypeVar("Q")
ReplyOrError = TypeVar("ReplyOrError", bound=Answer | FinishedAnswer)
OBJECTS = 16
"""How much longer it takes to put a byte of scores into messages one by one than to copy it."""


@dataclass(frozen=True, slots=True)
class WrittenReplies(Generic[R]):
    """A reply for each message; `size`: of all, in bytes that take as long to copy, about."""

    replies: list[R]
    size: int


@dataclass(frozen=True, slots=True)
class Method(Generic[M, R]):
    """How messages of equal `options` are answered: with a reply each."""

    answer: Callable[[Sequence[M], Caller], Awaitable[WrittenReplies[R]]]
    options: Callable[[M], Hashable] = options


def timed(
    frontend: Frontend,
    read: Callable[[Sequence[M]], Q],
    call_service: Callable[[Q, RequestTerms], Awaitable[ReplyOrError]],
    write: Callable[[Q, ReplyOrError], list[R]],
    weight: int = 1,
) -> Callable[[Sequence[M], Caller], Awaitable[WrittenReplies[R]]]:
    """Answers by an exchange, whose replies tell their times. `weight`: see `Exchange`."""
    exchange = Exchange(read=read, call_service=call_service, write=partial(_written, write, weight), weight=weight)

    async def answer(messages: Sequence[M], caller: Caller) -> WrittenReplies[R]:
        start = time.monotonic()
        written, timing = await frontend.exchange(exchange, messages, size_of(messages), caller)
        put_times(written.replies, timing, time.monotonic() - start)  # type: ignore[arg-type]  # each has metadata
        return written

    return answer


def _written(
    write: Callable[[Q, ReplyOrError], list[R]], weight: int, request: Q, told: ReplyOrError
) -> WrittenReplies[R]:
    return WrittenReplies(write(request, told), weight * told.size)


def size_of(messages: Sequence[Message]) -> int:
    """Bytes."""
    return sum(each.ByteSize() for each in messages)


class Grouped(Generic[M, R]):
    """One stream of such messages."""

    def __init__(
        self, frontend: Frontend, method: Method[M, R], caller: Caller, stream: OpenStream, replies: Replies
    ) -> None:
        self._frontend, self._method, self._caller = frontend, method, caller
        self._deadline = None if caller.remaining is None else Deadline.after(caller.remaining)
        self._coalescing = CoalescedStream[M](frontend.calls.admission, stream, replies, method.options, self._answer)

    async def run(self, messages: RequestStream[M]) -> None:
        """Until all are answered. Raises SelvageError, the first that a message meets, or that ends the stream."""
        await self._coalescing.run(messages)

    async def _answer(self, messages: Sequence[M]) -> list[bytes]:
        """One call."""
        calls, caller = self._frontend.calls, self._caller
        if self._deadline is not None:
            caller = replace(caller, remaining=self._deadline.remaining())
        with calls.running(caller):
            async with calls.timeout(caller):
                written = await self._method.answer(messages, caller)
                return await self._frontend.offload(written.size, _serialised, written.replies)


def _serialised(replies: Sequence[Message]) -> list[bytes]:
    return [reply.SerializeToString() for reply in replies]

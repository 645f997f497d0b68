"""Groups of tei.v1 messages, each answered by one call to the service; a unary call is a group of one message."""

import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from google.protobuf.message import Message

from frontend_service.api.streams.coalesced import CoalescedStream
from frontend_service.api.streams.two_way_stream import Replies, RequestStream
from frontend_service.api.tei_v1.codec.fields import options_key, put_times
from frontend_service.application.exchange import Exchange
from frontend_service.application.frontend import Frontend
from frontend_service.domain.answer import Answer, FinishedAnswer
from shared.caller import Caller
from shared.server.admission import OpenStream
from shared.terms import Deadline, RequestTerms

M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Message)
Q = TypeVar("Q")
TimedAnswer = TypeVar("TimedAnswer", bound=Answer | FinishedAnswer)
OBJECT_WEIGHT = 16
"""Times that a byte of scores takes longer into messages, an object each, than to be copied."""


@dataclass(frozen=True, slots=True)
class WrittenReplies(Generic[R]):
    """The replies to a group, one for each message. `size`: bytes whose copy takes as long as writing them did."""

    replies: list[R]
    size: int


@dataclass(frozen=True, slots=True)
class GroupMethod(Generic[M, R]):
    """A method of tei.v1. `answer` gives one reply for each message of a group; a group has one `options_key`."""

    answer: Callable[[Sequence[M], Caller], Awaitable[WrittenReplies[R]]]
    options_key: Callable[[M], Hashable] = options_key


def timed_exchange(
    frontend: Frontend,
    read: Callable[[Sequence[M]], Q],
    call_service: Callable[[Q, RequestTerms], Awaitable[TimedAnswer]],
    write: Callable[[Q, TimedAnswer], list[R]],
    weight: int = 1,
) -> Callable[[Sequence[M], Caller], Awaitable[WrittenReplies[R]]]:
    """Returns a function that answers a group by an exchange, with times in its replies. `weight`: see `Exchange`."""
    exchange = Exchange(
        read=read, call_service=call_service, write=partial(_write_replies, write, weight), weight=weight
    )

    async def answer(messages: Sequence[M], caller: Caller) -> WrittenReplies[R]:
        start = time.monotonic()
        written, timing = await frontend.exchange(exchange, messages, byte_size(frontend, messages), caller)
        put_times(written.replies, timing, time.monotonic() - start)  # type: ignore[arg-type]  # all replies have metadata
        return written

    return answer


def _write_replies(
    write: Callable[[Q, TimedAnswer], list[R]], weight: int, request: Q, answer: TimedAnswer
) -> WrittenReplies[R]:
    return WrittenReplies(write(request, answer), weight * answer.size)


def byte_size(frontend: Frontend, messages: Sequence[Message]) -> int:
    """Size of all messages together, in bytes; only those of a group are asked, which are small."""
    return frontend.calls.admission.message_size or sum(message.ByteSize() for message in messages)


class GroupedStream(Generic[M, R]):
    """A stream of messages of one method, answered in groups."""

    def __init__(
        self, frontend: Frontend, method: GroupMethod[M, R], caller: Caller, stream: OpenStream, replies: Replies
    ) -> None:
        self._frontend, self._method, self._caller = frontend, method, caller
        self._deadline = None if caller.remaining is None else Deadline.after(caller.remaining)
        self._messages = CoalescedStream[M](
            frontend.calls.admission, stream, replies, method.options_key, self._answer_group
        )

    async def run(self, messages: RequestStream[M]) -> None:
        """Reads and answers all messages. Raises the first SelvageError of a message or of the stream."""
        await self._messages.run(messages)

    async def _answer_group(self, messages: Sequence[M]) -> list[bytes]:
        """Answers a group as one call."""
        calls, caller = self._frontend.calls, self._caller
        if self._deadline is not None:
            caller = replace(caller, remaining=self._deadline.remaining())
        with calls.running(caller):
            async with calls.timeout(caller):
                written = await self._method.answer(messages, caller)
                return await self._frontend.offload(written.size, _serialize, written.replies)


def _serialize(replies: Sequence[Message]) -> list[bytes]:
    return [reply.SerializeToString() for reply in replies]

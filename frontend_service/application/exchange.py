"""One call of any API, from its message to its reply. Knows no API, no message and no transport."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from frontend_service.domain.answer import Answer, FinishedAnswer, Timing
from frontend_service.services.pipeline import Pipeline
from shared.terms import RequestTerms

Message = TypeVar("Message")
Request = TypeVar("Request")
ServiceAnswer = TypeVar("ServiceAnswer", bound=Answer | FinishedAnswer)
Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange(Generic[Message, Request, ServiceAnswer, Reply]):
    """One method of an API: `read` makes the request of a message, `call_service` answers it, `write` makes the reply.

    Large messages are read and written in a thread, so `read` and `write` may touch nothing but their arguments.
    `weight`: how many times longer it takes to write a byte of the answer than to copy it.
    """

    read: Callable[[Message], Request]
    call_service: Callable[[Request, RequestTerms], Awaitable[ServiceAnswer]]
    write: Callable[[Request, ServiceAnswer], Reply]
    weight: int = 1

    async def run(self, pipeline: Pipeline, message: Message, size: int, terms: RequestTerms) -> tuple[Reply, Timing]:
        """Answers a message of `size` bytes. The times include writing the reply. Raises SelvageError."""
        request = await pipeline.offload(size, self.read, message)
        answer = await self.call_service(request, terms)
        reply = await pipeline.offload(self.weight * answer.size, partial(self.write, request), answer)
        return reply, answer.timing(pipeline.clock())

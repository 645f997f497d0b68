"""From a door's message to its reply, and where the time went. Knows no door, no message and no transport."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from frontend_service.domain.answer import Answer, FinishedAnswer, Timing
from frontend_service.services.pipeline import Pipeline
from shared.terms import RequestTerms

Message = TypeVar("Message")
Request = TypeVar("Request")
ReplyTimes = TypeVar("ReplyTimes", bound=Answer | FinishedAnswer)
Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange(Generic[Message, Request, ReplyTimes, Reply]):
    """One rpc of one door: `read` a message, `ask` a service, `write` a reply. Reading and writing are the door's.

    Both run in a thread where they have much to do, so they may touch nothing but their arguments. `weight`: how much
    longer it takes to write a byte of the answer than to copy it.
    """

    read: Callable[[Message], Request]
    ask: Callable[[Request, RequestTerms], Awaitable[ReplyTimes]]
    write: Callable[[Request, ReplyTimes], Reply]
    weight: int = 1

    async def run(self, service: Pipeline, message: Message, size: int, terms: RequestTerms) -> tuple[Reply, Timing]:
        """`size`: bytes of the message. Raises SelvageError. Writing is the last thing that the times tell."""
        request = await service.offload(size, self.read, message)
        told = await self.ask(request, terms)
        reply = await service.offload(self.weight * told.size, partial(self.write, request), told)
        return reply, told.timing(service.clock())

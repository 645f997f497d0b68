"""The application object that all APIs call: the services on domain types, and the policy of calls. Knows no API."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from frontend_service.domain.answer import Answer, FinishedAnswer, Timing
from frontend_service.services.classify import ClassificationService
from frontend_service.services.embed import EmbeddingService
from frontend_service.services.models import ModelService
from frontend_service.services.pipeline import Pipeline
from frontend_service.services.rank import RankingService
from shared.caller import Caller
from shared.server.calls import Calls
from shared.terms import RequestTerms

Message = TypeVar("Message")
Request = TypeVar("Request")
ServiceAnswer = TypeVar("ServiceAnswer", bound=Answer | FinishedAnswer)
Reply = TypeVar("Reply")
T = TypeVar("T")


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


class Frontend:
    """The services, and the policy of calls: an API admits each call by `calls` and answers it by an Exchange."""

    def __init__(
        self,
        pipeline: Pipeline,
        calls: Calls,
        tell_times: Sequence[Callable[[Timing], None]] = (),
        thread_count: int = 1,
    ) -> None:
        """`tell_times`: called with the times of each exchange. `thread_count`: the number of threads that tokenise."""
        self.calls = calls
        self.thread_count = thread_count
        self.embedding = EmbeddingService(pipeline)
        self.ranking = RankingService(pipeline)
        self.classification = ClassificationService(pipeline)
        self.models = ModelService(pipeline)
        self.limits = pipeline.limits
        self._pipeline, self._tell_times = pipeline, tell_times

    async def exchange(
        self,
        exchange: Exchange[Message, Request, ServiceAnswer, Reply],
        message: Message,
        size: int,
        caller: Caller,
    ) -> tuple[Reply, Timing]:
        """Answers a message of `size` bytes, and reports the times that this took, writing the reply included.

        Raises SelvageError.
        """
        pipeline, terms = self._pipeline, self.calls.terms(caller)
        request = await pipeline.offload(size, exchange.read, message)
        answer = await exchange.call_service(request, terms)
        reply = await pipeline.offload(exchange.weight * answer.size, partial(exchange.write, request), answer)
        timing = answer.timing(pipeline.clock())
        for tell in self._tell_times:
            tell(timing)
        return reply, timing

    def offload(self, size: int, work: Callable[[Message], T], argument: Message) -> Coroutine[Any, Any, T]:
        """Runs `work(argument)`, in a thread where it reads or writes many bytes."""
        return self._pipeline.offload(size, work, argument)

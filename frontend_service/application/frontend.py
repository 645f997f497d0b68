"""What every door opens to: all services on domain types, and what holds for every call. Knows no door."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from frontend_service.application.exchange import Exchange
from frontend_service.domain.answer import Answer, FinishedAnswer, Timing
from frontend_service.services.classification import ClassificationService
from frontend_service.services.embedding import EmbeddingService
from frontend_service.services.models import ModelService
from frontend_service.services.pipeline import Pipeline
from frontend_service.services.ranking import RankingService
from shared.caller import Caller
from shared.server.calls import Calls
from shared.telemetry.figures import TellTimes

M = TypeVar("M")
Q = TypeVar("Q")
A = TypeVar("A", bound=Answer | FinishedAnswer)
R = TypeVar("R")
T = TypeVar("T")


class Frontend:
    """A door enters its calls at `calls`, and asks the services by an Exchange each."""

    def __init__(self, service: Pipeline, calls: Calls, tell_times: Sequence[TellTimes] = (), threads: int = 1) -> None:
        """`tell_times`: told where the time of each exchange went. `threads`: how many tokenise."""
        self.calls = calls
        self.threads = threads
        self.embedding = EmbeddingService(service)
        self.ranking = RankingService(service)
        self.classification = ClassificationService(service)
        self.models = ModelService(service)
        self._service, self._tell_times = service, tell_times

    async def exchange(self, exchange: Exchange[M, Q, A, R], message: M, size: int, caller: Caller) -> tuple[R, Timing]:
        """`size`: bytes of the message."""
        reply, timing = await exchange.run(self._service, message, size, self.calls.terms(caller))
        for tell in self._tell_times:
            tell(timing)
        return reply, timing

    async def offload(self, size: int, work: Callable[[M], T], argument: M) -> T:
        """`work(argument)`, in a thread where it reads or writes many bytes."""
        return await self._service.offload(size, work, argument)

"""The application object that all APIs call: the services on domain types, and the policy of calls. Knows no API."""

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
from shared.telemetry.figures import ObserveTimes

M = TypeVar("M")
Q = TypeVar("Q")
A = TypeVar("A", bound=Answer | FinishedAnswer)
R = TypeVar("R")
T = TypeVar("T")


class Frontend:
    """The services, and the policy of calls: an API admits each call by `calls` and answers it by an Exchange."""

    def __init__(
        self, pipeline: Pipeline, calls: Calls, tell_times: Sequence[ObserveTimes] = (), thread_count: int = 1
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

    async def exchange(self, exchange: Exchange[M, Q, A, R], message: M, size: int, caller: Caller) -> tuple[R, Timing]:
        """Answers a message of `size` bytes, and reports the times that this took. Raises SelvageError."""
        reply, timing = await exchange.run(self._pipeline, message, size, self.calls.terms(caller))
        for tell in self._tell_times:
            tell(timing)
        return reply, timing

    async def offload(self, size: int, work: Callable[[M], T], argument: M) -> T:
        """Runs `work(argument)`, in a thread where it reads or writes many bytes."""
        return await self._pipeline.offload(size, work, argument)

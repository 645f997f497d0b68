"""What every door opens to: all services on domain types, and what holds for every call. Knows no door."""

from collections.abc import Callable
from typing import TypeVar

from frontend_service.answer import Answer, Finished, Timing
from frontend_service.classification import Classification
from frontend_service.embedding import Embedding
from frontend_service.exchange import Exchange
from frontend_service.models import Models
from frontend_service.ranking import Ranking
from frontend_service.service import Service
from shared.calls import Calls

M = TypeVar("M")
Q = TypeVar("Q")
A = TypeVar("A", bound=Answer | Finished)
R = TypeVar("R")
T = TypeVar("T")


class Frontend:
    """A door enters its calls at `calls`, and asks the services by an Exchange each."""

    def __init__(self, service: Service, calls: Calls) -> None:
        self.calls = calls
        self.embedding = Embedding(service)
        self.ranking = Ranking(service)
        self.classification = Classification(service)
        self.models = Models(service)
        self._service = service

    async def exchange(
        self, exchange: Exchange[M, Q, A, R], message: M, size: int, remaining: float | None
    ) -> tuple[R, Timing]:
        """`size`: bytes of the message; `remaining`: seconds that the caller waits, None where it did not say."""
        return await exchange.run(self._service, message, size, self.calls.deadline(remaining))

    async def offload(self, size: int, work: Callable[[M], T], argument: M) -> T:
        """`work(argument)`, in a thread where it reads or writes many bytes."""
        return await self._service.offload(size, work, argument)

"""One worker: its connection, its health and its model, together the `Worker` of the service. Knows no gRPC."""

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

import structlog

from frontend_service.worker.connection import Connection
from frontend_service.worker.description import describe
from frontend_service.worker.health import Health
from frontend_service.worker.protocol import ServedModel
from frontend_service.worker.tokenizer import tokenization_of
from shared.card import ModelCard
from shared.errors import WorkerUnavailable
from shared.jobs import Job, JobResult

log = structlog.get_logger("worker")


class WorkerLink:
    """`run` and `model` fail at once while the worker is not ready; `supervise` finds it again."""

    def __init__(self, target: str, threads: Executor, on_ready: Callable[[bool], Awaitable[None]]) -> None:
        """`on_ready` is told whenever the worker becomes usable or stops being so."""
        self._connection = Connection(target, threads)
        self._health = Health(self._connection, self._found, self._lost)
        self._threads = threads
        self._on_ready = on_ready
        self._model: ServedModel | None = None
        self._ready = False
        self._why = "no worker has answered yet"

    @property
    def model(self) -> ServedModel:
        """Raises WorkerUnavailable."""
        if self._model is None or not self._ready:
            raise WorkerUnavailable(f"the worker is not ready: {self._why}", retry_after=1.0)
        return self._model

    async def run(self, job: Job) -> JobResult:
        """See `Worker`."""
        return await self._connection.run(job)

    async def supervise(self) -> None:
        """Never returns."""
        await self._health.follow()

    async def close(self) -> None:
        await self._connection.close()

    async def _found(self) -> None:
        """Takes the card and, the first time, the tokenizer. Raises WorkerUnavailable for another model."""
        told, known = await describe(self._connection), self._model
        if known is None:
            tokenization = await tokenization_of(self._connection, told.card, self._threads)
        else:
            _check_same(told.card, known.card)
            tokenization = known.tokenization
        self._model = ServedModel(card=told.card, tokenization=tokenization, queued_tokens=told.queued_tokens)
        self._ready = True
        log.info("worker ready", target=self._connection.target, model=told.card.id, fingerprint=told.card.fingerprint)
        await self._on_ready(True)

    async def _lost(self, why: str) -> None:
        if why != self._why:
            log.warning("worker not ready", target=self._connection.target, why=why)
        self._ready, self._why = False, why
        await self._on_ready(False)


def _check_same(told: ModelCard, known: ModelCard) -> None:
    """Clients may hold vectors of the one, and the tokenizer is of the one: another model is never served instead."""
    if told.fingerprint != known.fingerprint:
        log.error("fingerprint differs", worker=told.fingerprint, known=known.fingerprint)
        raise WorkerUnavailable("it came back with another model; restart this frontend to serve that")

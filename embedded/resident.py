"""The worker in this process, with the interface that the frontend's services use. Knows no transport."""

import asyncio
from dataclasses import replace
from functools import partial

from frontend_service.workers.interface import ServedModel
from frontend_service.workers.row_parts import RowParts
from gpu_worker.schedule.driver import Driver, OnPart
from shared.errors import GivenBack, Internal, UnknownModel, WorkerUnavailable, clip
from shared.jobs import Job, JobResult


class Resident:
    """The `Workers` of the services, in this process. `lost`: why the device no longer computes, or empty."""

    def __init__(self, loop: Driver, *served: ServedModel) -> None:
        """`served`: the worker's model, and the adapters over it."""
        self._worker_loop, self._served = loop, served
        self.lost = ""

    def model(self, name: str) -> ServedModel:
        """See `Workers`."""
        if self.lost:
            raise Internal(self.lost)  # a retry would not help
        for served in self._served:
            if name in ("", *served.card.names):
                return served
        ids = ", ".join(served.card.id for served in self._served)
        raise UnknownModel(f"no model is called {clip(name)}; there is {ids}", field="model")

    def models(self) -> tuple[ServedModel, ...]:
        """See `Workers`."""
        self.model("")
        return tuple(sorted(self._served, key=lambda served: served.card.id))

    async def run(self, model: ServedModel, job: Job) -> JobResult:
        """See `Workers`."""
        return await self._run(model.job(job), None)

    async def run_in_parts(self, model: ServedModel, job: Job, parts: RowParts) -> JobResult:
        """See `Workers`."""
        loop = self._worker_loop
        parts.on_full = lambda full: (loop.set_aside if full else loop.bring_back)([job.id])
        last = await self._run(model.job(job), partial(_put, parts))
        _put(parts, last)
        return replace(last, tokens=None, token_ids=b"")

    async def _run(self, job: Job, on_part: OnPart | None) -> JobResult:
        try:
            return await self._worker_loop.result_of(job, on_part)
        except asyncio.CancelledError:
            self._worker_loop.cancel([job.id])
            raise
        except GivenBack as error:  # there is no other worker
            raise WorkerUnavailable(error.message, retry_after=error.retry_after) from None


def _put(parts: RowParts, result: JobResult) -> None:
    """Puts the token rows of a part of a result where their reader takes them."""
    if result.tokens is not None:
        parts.put(result.tokens.data, result.tokens.scales, result.token_ids)

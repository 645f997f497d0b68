"""The worker in this process, with the interface that the frontend's services use. Knows no transport."""

import asyncio

from frontend_service.workers.interface import ServedModel
from gpu_worker.schedule.driver import Driver
from shared.errors import GivenBack, Internal, UnknownModel, WorkerUnavailable, clip
from shared.jobs import Job, JobResult


class Resident:
    """The `Workers` of the services, in this process. `lost`: why the device no longer computes, or empty."""

    def __init__(self, driver: Driver, *served: ServedModel) -> None:
        """`served`: the worker's model, and the adapters over it."""
        self._driver, self._served = driver, served
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
        try:
            return await self._driver.result_of(model.job(job))
        except asyncio.CancelledError:
            self._driver.cancel([job.id])
            raise
        except GivenBack as error:  # there is no other worker
            raise WorkerUnavailable(error.message, retry_after=error.retry_after) from None

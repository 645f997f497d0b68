"""The workers as the services see them. Knows no transport; tests pass a fake of a dozen lines."""

from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from frontend_service.tokenizing.tokenizer import ModelTokenizer
from frontend_service.workers.row_parts import RowParts
from shared.card import ModelCard
from shared.jobs import Job, JobResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model behind a ready worker.

    The worker refuses jobs that would make its queue longer than `queued_tokens`, or would stand in it for longer than
    `queue_seconds`. `adapter`: it is an adapter over the worker's own model, which serves beside it.
    """

    card: ModelCard
    tokenizer: ModelTokenizer
    queued_tokens: int
    queue_seconds: float = inf
    adapter: bool = False

    def job(self, job: Job) -> Job:
        """The job as this model's worker wants it."""
        return replace(job, model=self.card.fingerprint) if self.adapter else job


class Workers(Protocol):
    """All workers together: the models that they serve, and the jobs that they compute."""

    def model(self, name: str) -> ServedModel:
        """The model of that name; empty: the only one that is no adapter. Raises UnknownModel, WorkerUnavailable."""

    def models(self) -> tuple[ServedModel, ...]:
        """All models that are served, sorted by name. Raises WorkerUnavailable where there is none."""

    async def run(self, model: ServedModel, job: Job) -> JobResult:
        """Has a worker with this model compute a job. Cancelling it cancels the job.

        Raises the job's own error, WorkerUnavailable, Overloaded or DeadlineExceeded.
        """

    async def run_in_parts(self, model: ServedModel, job: Job, parts: RowParts) -> JobResult:
        """See `run`. Token rows go to `parts` as they come, even before an error; the result has none of them."""

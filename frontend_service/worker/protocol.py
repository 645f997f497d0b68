"""The worker as the service sees it. Knows no transport; tests pass a fake of a dozen lines."""

from dataclasses import dataclass
from typing import Protocol

from frontend_service.tokenization import Tokenization
from shared.card import ModelCard
from shared.jobs import Job, JobResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model behind a ready worker, which refuses jobs over `queued_tokens` waiting tokens."""

    card: ModelCard
    tokenization: Tokenization
    queued_tokens: int


class Worker(Protocol):
    """Computes jobs with the one model that it has."""

    @property
    def model(self) -> ServedModel:
        """Raises WorkerUnavailable until a worker is ready."""

    async def run(self, job: Job) -> JobResult:
        """Raises the job's own error, WorkerUnavailable or DeadlineExceeded. Cancelling it cancels the job."""

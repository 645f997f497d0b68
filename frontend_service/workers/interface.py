"""The workers as the service sees them. Knows no transport; tests pass a fake of a dozen lines."""

from dataclasses import dataclass
from math import inf
from typing import Protocol

from frontend_service.tokenizing.tokenizer import ModelTokenizer
from shared.card import ModelCard
from shared.jobs import Job, JobResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model behind a ready worker, which refuses jobs where so many tokens wait, or that would wait so long."""

    card: ModelCard
    tokenization: ModelTokenizer
    queued_tokens: int
    queue_seconds: float = inf


class Workers(Protocol):
    """Computes jobs, whatever workers and models there are."""

    def model(self, name: str) -> ServedModel:
        """The model of that name; empty means the only one. Raises UnknownModel, WorkerUnavailable."""

    def models(self) -> tuple[ServedModel, ...]:
        """All that are served, by name. Raises WorkerUnavailable where there is none."""

    async def run(self, model: ServedModel, job: Job) -> JobResult:
        """Raises the job's own error, WorkerUnavailable or DeadlineExceeded. Cancelling it cancels the job."""

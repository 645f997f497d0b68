"""The workers as the services see them. Knows no transport; tests pass a fake of a dozen lines."""

from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from frontend_service.tokenizing.tokenizer import ModelTexts, ModelTokenizer
from shared.card import ModelCard
from shared.errors import InvalidInput
from shared.jobs import Job, JobResult
from shared.query_table import QueryTable
from shared.vectors import InputType


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model behind a ready worker.

    `texts` reads its texts. The worker refuses jobs that would make its queue longer than `queued_tokens`, or would
    stand in it for longer than `queue_seconds`. `adapter`: it is an adapter over the worker's own
    model, which serves beside it.
    """

    card: ModelCard
    texts: ModelTexts
    queued_tokens: int
    queue_seconds: float = inf
    adapter: bool = False

    def job(self, job: Job) -> Job:
        """The job as this model's worker wants it."""
        return replace(job, model=self.card.fingerprint) if self.adapter else job

    @property
    def tokenizer(self) -> ModelTokenizer:
        """The tokenizer of texts whose kind is not told, and of documents."""
        return self.texts.tokenizer

    def tokenizer_of(self, input_type: InputType) -> ModelTokenizer:
        """The tokenizer of texts of a kind. Raises InvalidInput where the model wants the kind and it is not told."""
        return (self._is_query(input_type) and self.texts.query) or self.texts.tokenizer

    def writers_of(self, input_type: InputType) -> tuple[ModelTokenizer, ...]:
        """The tokenizers that ids of a kind may be of: both where the model wants the kind and it is not told."""
        route = self.card.query_route
        if route is None or self.texts.query is None or input_type or route.default_input_type:
            return (self.tokenizer_of(input_type),)
        return (self.texts.tokenizer, self.texts.query)

    def table_of(self, input_type: InputType) -> QueryTable | None:
        """The table in which texts of a kind are looked up; None where a worker computes them. Raises as above."""
        return self.texts.query_table if self._is_query(input_type) else None

    def _is_query(self, input_type: InputType) -> bool:
        route = self.card.query_route
        if route is None:
            return False
        kind = input_type or route.default_input_type
        if not kind:
            raise InvalidInput("the model reads queries and documents differently: say which", field="input_type")
        return kind is InputType.QUERY


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

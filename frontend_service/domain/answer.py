"""What the worker made of a request, with what the frontend knows of its texts and its times. Knows no door."""

from dataclasses import dataclass

from shared.jobs import JobResult
from shared.ragged import RaggedTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Where the time of a request went, in seconds; see `selvage.v1.Timing`. Reading the request is in no part."""

    tokenize: float
    queue: float
    compute: float
    transfer: float
    postprocess: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A job's result with what the frontend knows of its texts.

    `tokenize` and `transfer` (the round trip to the worker without its queue and compute) in seconds; `answered`: when
    the worker's answer was there, by the service's clock.
    """

    model: str
    result: JobResult
    tokens: RaggedTokens
    truncated: tuple[bool, ...]
    tokenize: float
    transfer: float
    answered: float

    @property
    def size(self) -> int:
        """Bytes of vectors and scores."""
        rows, sparse = (self.result.dense, self.result.tokens), self.result.sparse
        pairs = len(sparse.indices) + len(sparse.values) if sparse is not None else 0
        explained = len(self.result.winners) + len(self.result.similarities)
        return len(self.result.scores) + explained + pairs + sum(len(each.data) for each in rows if each is not None)

    def timing(self, finished: float) -> Timing:
        """Of a reply that was `finished` then, by the service's clock."""
        return Timing(
            tokenize=self.tokenize,
            queue=self.result.queue,
            compute=self.result.compute,
            transfer=self.transfer,
            postprocess=finished - self.answered,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedAnswer:
    """An answer and what a service made of it; each service adds its own."""

    answer: Answer

    @property
    def size(self) -> int:
        """Bytes that a reply of it holds, about."""
        return self.answer.size

    def timing(self, finished: float) -> Timing:
        """See `Answer.timing`."""
        return self.answer.timing(finished)

"""Answers: a job's result with what the frontend knows of the request's texts and times. Knows no API."""

from dataclasses import dataclass, replace

from shared.jobs import JobResult, PackedBytes, RaggedTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds that the parts of a request took. Reading the request counts in none of them.

    `tokenize`: until the token ids were there. `queue`: from the job's arrival at the worker to its first step.
    `compute`: from there to the end of its last step. `transfer`: the round trip to the worker without these two.
    `postprocess`: from the worker's result to the finished reply.
    """

    tokenize: float
    queue: float
    compute: float
    transfer: float
    postprocess: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A job's result with what the frontend knows of its texts.

    `tokens`: the token ids of all texts in the order of the request, equal ones as often as they were sent, with
    special tokens; of documents in windows, those of each window, and of a listwise reranker those of each block,
    whose counts are still those of texts. `token_counts`: the tokens of each text or, of a late
    chunking, of each chunk; `truncated`: whether each was cut. `tokenize` and `transfer` (the round trip to the worker
    without its queue and compute) in seconds. `answered`: the time at which the worker's result was there, by the
    pipeline's clock. `ranked_by`: what results are sorted by: the scores, in their shape, before an activation, which
    in float32 makes one number of many.
    """

    model: str
    result: JobResult
    ranked_by: PackedBytes
    tokens: RaggedTokens
    truncated: tuple[bool, ...]
    token_counts: tuple[int, ...]
    tokenize: float
    transfer: float
    answered: float

    def with_result(self, result: JobResult) -> "Answer":
        """The same answer with another result, whose scores it is ranked by."""
        return replace(self, result=result, ranked_by=result.scores)

    @property
    def size(self) -> int:
        """Approximate bytes of the reply: those of vectors, scores and winners, without scales, ids and counts."""
        rows, sparse = (self.result.dense, self.result.tokens), self.result.sparse
        pairs = len(sparse.indices) + len(sparse.values) if sparse is not None else 0
        explained = len(self.result.winners) + len(self.result.similarities)
        return (
            len(self.result.scores)
            + explained
            + pairs
            + sum(len(vectors.data) for vectors in rows if vectors is not None)
        )

    def timing(self, finished: float) -> Timing:
        """The times of this request, whose reply was `finished` at that time of the pipeline's clock."""
        return Timing(
            tokenize=self.tokenize,
            queue=self.result.queue,
            compute=self.result.compute,
            transfer=self.transfer,
            postprocess=finished - self.answered,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedAnswer:
    """An answer with what a service made of it, in fields of a subclass."""

    answer: Answer

    @property
    def size(self) -> int:
        """Approximate bytes of its reply."""
        return self.answer.size

    def timing(self, finished: float) -> Timing:
        """See `Answer.timing`."""
        return self.answer.timing(finished)

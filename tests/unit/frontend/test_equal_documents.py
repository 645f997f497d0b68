"""Equal documents of a request get one score and keep their order, whatever the worker's rounding does to places."""

from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from fakes import FakeWorker, card, pipeline_of

from frontend_service.api.selvage_v1 import codec
from frontend_service.domain.limits import ExpectedReply
from frontend_service.domain.requests import Truncation
from frontend_service.services.pipeline import ServedModel
from frontend_service.services.rank import RankingService
from frontend_service.tokenizing.pairs import PairTexts
from frontend_service.tokenizing.tokens import TokenizedBatch
from selvage.v1 import ranking_pb2 as pb
from shared.caller import RequestTerms
from shared.jobs import Classify, Job, JobResult, Score
from shared.vectors import OutputKind, ScoringMethod, Task
from support.chunks import run_to_end

LATER = RequestTerms.within(3600)
METHODS = [method for method in ScoringMethod if method is not ScoringMethod.LISTWISE]
"""Equal documents of a listwise reranker differ by what stands before them: test_listwise.py."""
ALL: dict[str, Any] = {
    "outputs": tuple(OutputKind),
    "methods": tuple(METHODS),
    "tasks": (Task.RERANK, Task.CLASSIFY),
    "labels": ("relevant",),
}
DOCUMENTS = ["x y" if place % 3 == 1 else f"{'abcdefghij'[place % 10]} {'klmnop'[place // 10]}" for place in range(60)]
EQUAL = list(range(1, 60, 3))


class Drifting(FakeWorker):
    """Scores tell what is compared; their last bits hang on the place in the job, as products in other blocks do."""

    async def run(self, model: ServedModel, job: Job, expected: ExpectedReply) -> JobResult:
        self.jobs.append(job)
        ends = job.tokens.offsets
        texts = [job.tokens.ids[4 * start : 4 * stop] for start, stop in pairwise(ends)]
        pairs: list[tuple[bytes, ...]] = [(text,) for text in texts]
        if isinstance(job.work, Score):
            pairs = list(product(texts[: job.work.queries], texts[job.work.queries :]))
        scores = [1 + crc32(b"|".join(pair)) % 64 + place * 2**-16 for place, pair in enumerate(pairs)]
        return JobResult(scores=np.array(scores, dtype="<f4").tobytes())


def frontend() -> tuple[RankingService, Drifting]:
    worker = Drifting(card(**ALL))
    return RankingService(pipeline_of(worker)), worker


def numbers(result: JobResult) -> np.ndarray:
    return np.frombuffer(result.scores, dtype="<f4")


async def asked_for_each(worker: Drifting, work: Any, some: TokenizedBatch) -> np.ndarray:
    """What the worker says where it is asked about every input, repeated or not."""
    return numbers(await worker.run(worker.served, Job(id=1, work=work, tokens=some.tokens), ExpectedReply({})))


def whole_request(worker: Drifting, queries: Sequence[str], method: ScoringMethod) -> TokenizedBatch:
    """All of it as token ids."""
    read = worker.served.tokenizer
    if method is ScoringMethod.CROSS_ENCODER:
        texts = PairTexts(firsts=queries, seconds=DOCUMENTS, matrix=True, entry="documents[{}]", cut=Truncation())
        return run_to_end(read.pairs(texts))
    sides = [read.texts(texts, "", Truncation(), "{}") for texts in (queries, DOCUMENTS)]
    return TokenizedBatch.joined(sides)


def alike(scores: np.ndarray, keys: Sequence[Any]) -> bool:
    """Whether each key has one score, and not all the same."""
    assert len(set(scores.tolist())) > 1
    return len(set(zip(keys, scores.tolist(), strict=True))) == len(set(keys))


@pytest.mark.parametrize("method", METHODS)
async def test_a_rerank_keeps_the_order_of_equal_documents(method: ScoringMethod) -> None:
    """With one score for all of them, by every method; a worker that is asked about each puts the last first."""
    made, worker = frontend()
    request = codec.rerank_request_from_pb(pb.RerankRequest(query="a", documents=DOCUMENTS, method=method))
    reranked = await made.rerank(request, LATER)
    (job,) = worker.jobs
    pairs = isinstance(job.work, Classify)
    assert pairs == (method is ScoringMethod.CROSS_ENCODER)
    assert len(job.tokens) == 60 - len(EQUAL) + 1 + (not pairs)
    assert alike(numbers(reranked.answer.result), DOCUMENTS)
    assert len({score for place, score in reranked.ranking if place in EQUAL}) == 1
    assert [place for place, _ in reranked.ranking if place in EQUAL] == EQUAL

    scores = (await asked_for_each(worker, job.work, whole_request(worker, ["a"], method))).tolist()
    order = sorted(range(60), key=lambda place: -scores[place])
    assert [place for place in order if place in EQUAL] == EQUAL[::-1]

"""Queries and documents of late interaction: lengths, expansion, explanations, texts against given documents."""

from typing import Any

import fakes
import numpy as np
import pytest

from frontend_service.api.selvage_v1 import codec
from frontend_service.domain.limits import ExpectedReply, Limits
from frontend_service.domain.requests import Truncation
from frontend_service.services.pipeline import ServedModel
from frontend_service.services.rank import RankingService
from frontend_service.tokenizing.tokenizer import ModelTokenizer
from selvage.v1 import ranking_pb2, vectors_pb2
from shared.caller import RequestTerms
from shared.card import LateInteraction
from shared.errors import InputTooLong, InvalidInput, LimitExceeded, ResultTooLarge, UnsupportedTask
from shared.jobs import Job, JobResult, MaxSim
from shared.vectors import InputType, Layout, OutputKind, QueryExpansion, ScoringMethod

LATER = RequestTerms.within(60)
MASK = 3
QUERY, DOCUMENT, NEITHER = InputType.QUERY, InputType.DOCUMENT, InputType.UNSPECIFIED
LATE = vectors_pb2.SCORING_METHOD_LATE_INTERACTION


def reading(**changes: Any) -> LateInteraction:
    values: dict[str, Any] = {
        "query_length": 8,
        "document_length": 20,
        "query_expansion": QueryExpansion.FIXED,
        "expansion_length": 8,
        "expansion_id": MASK,
    }
    return LateInteraction(**values | changes)


def tokenization(**changes: Any) -> ModelTokenizer:
    return ModelTokenizer(fakes.tokenizer_json(), fakes.card(late_interaction=reading(**changes)))


def tokenize(made: ModelTokenizer, text: str, side: InputType, **cut: Any) -> tuple[list[int], int]:
    """Ids and tail of one text."""
    tokenized = made.texts([text], "", Truncation(**cut), "texts[{}]", side)
    return np.frombuffer(tokenized.tokens.ids, "<i4").tolist(), tokenized.unattended_tails[0]


def service(**card: Any) -> tuple[RankingService, fakes.FakeWorker]:
    made, worker = fakes.service(Limits(message_bytes=100_000), **{"late_interaction": reading()} | card)
    return RankingService(made), worker


def test_each_side_has_its_own_limit() -> None:
    """Longer and shorter than that of texts which are neither; a request may lower it, not raise it."""
    made = tokenization()
    assert len(tokenize(made, "a " * 18, DOCUMENT)[0]) == 20
    assert len(tokenize(made, "a " * 8, NEITHER)[0]) == 10
    for side, words, limit in ((QUERY, 7, 8), (DOCUMENT, 19, 20), (NEITHER, 9, 10)):
        with pytest.raises(InputTooLong, match=f"the limit is {limit}"):
            tokenize(made, "a " * words, side)
        assert len(tokenize(made, "a " * words, side, truncate=True)[0]) == limit
        with pytest.raises(LimitExceeded, match=f"the model's limit is {limit}"):
            tokenize(made, "a", side, max_tokens=limit + 1)
    assert tokenize(made, "a b c d", QUERY, truncate=True, max_tokens=4) == ([1, 4, 5, 2, *[MASK] * 4], 4)


@pytest.mark.parametrize(
    ("ids", "tail"),
    [
        ([1, 4, 2, MASK, MASK, MASK, MASK, MASK], 5),
        ([1, 4, MASK, 2], 0),
        ([MASK] * 8, 7),
        ([1, 4, MASK, MASK], 0),
        ([1, 4, 2, *[MASK] * 4, 5], 0),
    ],
)
def test_given_ids_of_a_query_are_known_by_their_tail(ids: list[int], tail: int) -> None:
    """Exactly what Tokenize gave comes back as it was; for documents it is no expansion."""
    made = tokenization()
    assert made.token_ids([ids], Truncation(), QUERY).unattended_tails == (tail,)
    assert made.token_ids([ids], Truncation(), DOCUMENT).unattended_tails == (0,)
    assert tokenization(attend_to_expansion=True).token_ids([ids], Truncation(), QUERY).unattended_tails == (0,)


def test_the_token_that_ends_a_text_may_expand_it() -> None:
    """A model without a mask token: one of the trailing tokens is the text's own."""
    made = tokenization(expansion_id=2)
    ids, tail = tokenize(made, "a b", QUERY)
    assert (ids, tail) == ([1, 4, 5, 2, 2, 2, 2, 2], 4)
    assert made.token_ids([ids], Truncation(), QUERY).unattended_tails == (4,)
    assert made.token_ids([[1, 4, 2]], Truncation(), QUERY).unattended_tails == (0,)


class Explaining(fakes.FakeWorker):
    """Its second document has no winner; each token of the others is won by its neighbour."""

    async def run(self, model: ServedModel, job: Job, expected: ExpectedReply) -> JobResult:
        result = await super().run(model, job, expected)
        query = job.tokens.lengths[0]
        winners = np.array([np.arange(query) % 3, np.full(query, -1), np.ones(query)], dtype="<i4")
        similarities = np.where(winners >= 0, 0.5, 0.0).astype("<f4")
        return JobResult(scores=result.scores, winners=winners.tobytes(), similarities=similarities.tobytes())


async def test_an_explanation_follows_the_ranking() -> None:
    """It is cut with it, and empty for a document without a scoreable token."""
    ranking = RankingService(fakes.pipeline_of(Explaining(fakes.card())))
    message = ranking_pb2.RerankRequest(query="a b", documents=["c", "d", "e f"], method=LATE, explain=True)
    for top_n in (3, 1):
        message.top_n = top_n
        reranked = await ranking.rerank(codec.rerank_request_from_pb(message), LATER)
        explained = [
            (result.index, [match.document_token for match in result.explanation])
            for result in codec.rerank_response_to_pb(reranked).results
        ]
        assert explained == [(1, []), (2, ["e"] * 4), (0, ["[CLS]", "c", "[SEP]", "[CLS]"])][:top_n]


async def test_explanations_are_bounded() -> None:
    ranking, _ = service()
    large = ranking_pb2.RerankRequest(query="a", documents=["c"] * 400, method=LATE, explain=True)
    with pytest.raises(ResultTooLarge, match="set top_n"):
        await ranking.rerank(codec.rerank_request_from_pb(large), LATER)
    larger = ranking_pb2.RerankRequest(query="a", documents=["c"] * 2000, method=LATE, explain=True, top_n=1)
    with pytest.raises(LimitExceeded, match="explain fewer documents"):
        await ranking.rerank(codec.rerank_request_from_pb(larger), LATER)


def given_documents(count: int = 2) -> vectors_pb2.MultiVectors:
    return vectors_pb2.MultiVectors(
        data_type=vectors_pb2.DATA_TYPE_FLOAT32,
        dimensions=8,
        lengths=[1] * count,
        data=np.ones((count, 8), "<f4").tobytes(),
    )


async def test_texts_against_given_documents_travel_as_one_job() -> None:
    """With the query's prompt, limit and expansion; rows and sum or mean as the model's files say."""
    ranking, worker = service(prompts={"query": "query : "}, averages_late_interaction=True)
    for normalize in (None, True, False):
        message = ranking_pb2.MaxSimRequest(query_texts=["a"], documents=given_documents(), normalize=normalize)
        await ranking.max_sim(codec.max_sim_request_from_pb(message), LATER)
    assert worker.jobs[0].tokens.lengths == (8,)
    assert worker.jobs[0].unattended_tails == (3,)
    works = [job.work for job in worker.jobs]
    assert all(isinstance(work, MaxSim) and work.queries is None and work.layout is Layout.MATRIX for work in works)
    settled = [(work.unit_rows, work.unit_queries, work.mean) for work in works if isinstance(work, MaxSim)]
    assert settled == [(False, True, True), (True, True, True), (False, False, False)]


@pytest.mark.parametrize(
    ("fields", "card", "error", "field"),
    [
        ({"documents": vectors_pb2.MultiVectors(dimensions=8)}, {}, InvalidInput, "documents.lengths"),
        ({"layout": vectors_pb2.LAYOUT_PAIRS}, {}, InvalidInput, "documents.lengths"),
        ({"query_texts": ["a " * 9]}, {}, InputTooLong, "query_texts[0]"),
        ({"max_tokens_per_query": 9}, {}, LimitExceeded, "max_tokens_per_query"),
        ({"documents": given_documents(3000), "explain": True}, {}, LimitExceeded, "explain"),
        ({"documents": given_documents(1500), "explain": True}, {}, ResultTooLarge, ""),
        ({}, {"outputs": (OutputKind.DENSE,), "methods": (ScoringMethod.DENSE,)}, UnsupportedTask, "query_texts"),
    ],
)
async def test_what_makes_no_sense_of_texts_and_documents_is_refused(
    fields: dict[str, Any], card: dict[str, Any], error: type[Exception], field: str
) -> None:
    ranking, worker = service(**card)
    values = {"query_texts": ["a"], "documents": given_documents()} | fields
    with pytest.raises(error) as refused:
        await ranking.max_sim(codec.max_sim_request_from_pb(ranking_pb2.MaxSimRequest(**values)), LATER)
    assert refused.value.field == field  # type: ignore[attr-defined]
    assert not worker.jobs

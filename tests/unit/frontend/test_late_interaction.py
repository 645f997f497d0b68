"""Queries and documents of late interaction: lengths, expansion, explanations, texts against given documents."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fakes
import numpy as np
import pytest

from frontend_service.api.selvage_v1 import codec, embed_rpcs
from frontend_service.domain.limits import Limits
from frontend_service.domain.requests import Truncation
from frontend_service.services.embed import EmbeddingService
from frontend_service.services.models import ModelService
from frontend_service.services.pipeline import Pipeline, ServedModel
from frontend_service.services.rank import RankingService
from frontend_service.tokenizing.tokenizer import ModelTokenizer
from selvage.v1 import embedding_pb2, model_pb2, ranking_pb2, vectors_pb2
from shared.caller import RequestTerms
from shared.card import LateInteraction
from shared.errors import DimensionMismatch, InputTooLong, InvalidInput, LimitExceeded, ResultTooLarge, UnsupportedTask
from shared.jobs import Encode, Job, JobResult, MaxSim, Score
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


def service(**card: Any) -> tuple[Pipeline, fakes.FakeWorker]:
    worker = fakes.FakeWorker(fakes.card(**{"late_interaction": reading()} | card))
    pool = ThreadPoolExecutor(1)
    return Pipeline(worker, Limits(message_bytes=100_000), pool, pool), worker


@pytest.mark.parametrize("attended", [True, False])
def test_a_fixed_expansion_fills_queries_up_to_its_length(attended: bool) -> None:
    """With mask tokens after the last special one; nobody attends to them unless the model does."""
    made = tokenization(attend_to_expansion=attended)
    assert tokenize(made, "a b", QUERY) == ([1, 4, 5, 2, MASK, MASK, MASK, MASK], 0 if attended else 4)
    assert tokenize(made, "a b c d e f", QUERY) == ([1, 4, 5, 6, 7, 8, 9, 2], 0)
    for side in (DOCUMENT, NEITHER):
        assert tokenize(made, "a b", side) == ([1, 4, 5, 2], 0)


def test_a_least_expansion_leaves_longer_queries_alone() -> None:
    """MIN: at least so many, up to the query's own limit."""
    made = tokenization(query_expansion=QueryExpansion.MIN, expansion_length=5, query_length=9)
    assert tokenize(made, "a", QUERY) == ([1, 4, 2, MASK, MASK], 2)
    assert tokenize(made, "a b c d e f g", QUERY)[0] == [1, 4, 5, 6, 7, 8, 9, 10, 2]


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


async def test_tokenize_shows_what_embed_and_rerank_feed() -> None:
    """The same ids, and how many of them expansion added."""
    made, worker = service()
    shown = await ModelService(made).tokenize(
        codec.tokenize_request_from_pb(
            model_pb2.TokenizeRequest(texts=["a b"], input_type=vectors_pb2.INPUT_TYPE_QUERY)
        )
    )
    text = codec.tokenize_response_to_pb(shown).texts[0]
    assert text.expansion_tokens == 4
    assert list(text.special) == [True, False, False, True, True, True, True, True]
    assert list(text.tokens)[-2:] == ["[UNK]", "[UNK]"]
    request = embedding_pb2.EmbedRequest(texts=["a b"], input_type=vectors_pb2.INPUT_TYPE_QUERY)
    request.outputs.append(vectors_pb2.OUTPUT_KIND_MULTI_VECTOR)
    again = embedding_pb2.EmbedRequest(input_type=request.input_type, outputs=request.outputs)
    again.tokenized.add(ids=text.ids)
    for each in (request, again):
        await EmbeddingService(made).embed(embed_rpcs.embed_request_from_pb(each), LATER)
    scoring = ranking_pb2.RerankRequest(query="a b", documents=["a"], method=LATE)
    await RankingService(made).rerank(codec.rerank_request_from_pb(scoring), LATER)
    assert [job.unattended_tails for job in worker.jobs] == [(4,), (4,), (4, 0)]
    fed = [np.frombuffer(job.tokens.ids, "<i4")[:8].tolist() for job in worker.jobs]
    assert fed == [list(text.ids)] * 3
    assert isinstance(worker.jobs[0].work, Encode)
    assert worker.jobs[0].work.input_type is QUERY


class Explaining(fakes.FakeWorker):
    """Its second document has no winner; each token of the others is won by its neighbour."""

    async def run(self, model: ServedModel, job: Job) -> JobResult:
        result = await super().run(model, job)
        query = job.tokens.lengths[0]
        winners = np.array([np.arange(query) % 3, np.full(query, -1), np.ones(query)], dtype="<i4")
        similarities = np.where(winners >= 0, 0.5, 0.0).astype("<f4")
        return JobResult(scores=result.scores, winners=winners.tobytes(), similarities=similarities.tobytes())


async def test_an_explanation_names_tokens_of_both_texts() -> None:
    """In the order of the ranking, cut with it; empty for a document without a scoreable token."""
    worker = Explaining(fakes.card())
    pool = ThreadPoolExecutor(1)
    made = Pipeline(worker, Limits(), pool, pool)
    message = ranking_pb2.RerankRequest(query="a b", documents=["c", "d", "e f"], method=LATE, explain=True)
    request = codec.rerank_request_from_pb(message)
    reranked = await RankingService(made).rerank(request, LATER)
    assert isinstance(worker.jobs[0].work, Score)
    assert worker.jobs[0].work.explain
    results = codec.rerank_response_to_pb(reranked).results
    assert [each.index for each in results] == [1, 2, 0]
    assert not results[0].explanation
    found = [(each.query_token, each.document_token, each.document_position) for each in results[2].explanation]
    assert found == [("[CLS]", "[CLS]", 0), ("a", "c", 1), ("b", "[SEP]", 2), ("[SEP]", "[CLS]", 0)]
    assert [each.document_token for each in results[1].explanation] == ["e"] * 4
    assert {each.similarity for each in results[1].explanation} == {0.5}
    message.top_n = 1
    reranked = await RankingService(made).rerank(codec.rerank_request_from_pb(message), LATER)
    assert len(reranked.ranking) == len(reranked.explanations) == 1


async def test_only_late_interaction_explains() -> None:
    made, _ = service()
    message = ranking_pb2.RerankRequest(
        query="a", documents=["c"], method=vectors_pb2.SCORING_METHOD_DENSE, explain=True
    )
    with pytest.raises(InvalidInput, match="explain needs LATE_INTERACTION") as refused:
        await RankingService(made).rerank(codec.rerank_request_from_pb(message), LATER)
    assert refused.value.field == "explain"
    large = ranking_pb2.RerankRequest(query="a", documents=["c"] * 400, method=LATE, explain=True)
    with pytest.raises(ResultTooLarge, match="set top_n"):
        await RankingService(made).rerank(codec.rerank_request_from_pb(large), LATER)
    larger = ranking_pb2.RerankRequest(query="a", documents=["c"] * 2000, method=LATE, explain=True, top_n=1)
    with pytest.raises(LimitExceeded, match="explain fewer documents"):
        await RankingService(made).rerank(codec.rerank_request_from_pb(larger), LATER)


def given_documents(count: int = 2, dimensions: int = 8) -> vectors_pb2.MultiVectors:
    return vectors_pb2.MultiVectors(
        data_type=vectors_pb2.DATA_TYPE_FLOAT32,
        dimensions=dimensions,
        lengths=[1] * count,
        data=np.ones((count, dimensions), "<f4").tobytes(),
    )


async def test_texts_against_given_documents_travel_as_one_job() -> None:
    """With the query's prompt, limit and expansion; rows and sum or mean as the model's files say."""
    made, worker = service(prompts={"query": "query : "}, averages_late_interaction=True)
    for normalize in (None, True, False):
        message = ranking_pb2.MaxSimRequest(query_texts=["a"], documents=given_documents(), normalize=normalize)
        await RankingService(made).max_sim(codec.max_sim_request_from_pb(message), LATER)
    assert worker.jobs[0].tokens.lengths == (8,)
    assert worker.jobs[0].unattended_tails == (3,)
    works = [job.work for job in worker.jobs]
    assert all(isinstance(work, MaxSim) and work.queries is None and work.layout is Layout.MATRIX for work in works)
    settled = [(work.unit_rows, work.unit_queries, work.mean) for work in works if isinstance(work, MaxSim)]
    assert settled == [(False, True, True), (True, True, True), (False, False, False)]


@pytest.mark.parametrize(
    ("fields", "card", "error", "field"),
    [
        ({"queries": given_documents()}, {}, InvalidInput, "query_texts"),
        ({"query_texts": []}, {}, InvalidInput, "queries.lengths"),
        ({"documents": vectors_pb2.MultiVectors(dimensions=8)}, {}, InvalidInput, "documents.lengths"),
        ({"layout": vectors_pb2.LAYOUT_PAIRS}, {}, InvalidInput, "documents.lengths"),
        ({"documents": given_documents(2, 9)}, {}, DimensionMismatch, "documents.dimensions"),
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
    made, worker = service(**card)
    values = {"query_texts": ["a"], "documents": given_documents()} | fields
    with pytest.raises(error) as refused:
        await RankingService(made).max_sim(codec.max_sim_request_from_pb(ranking_pb2.MaxSimRequest(**values)), LATER)
    assert refused.value.field == field  # type: ignore[attr-defined]
    assert not worker.jobs

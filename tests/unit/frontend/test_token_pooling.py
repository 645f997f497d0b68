"""Pooled token rows, from request to job, and what is refused; unit/worker/test_token_pooling.py has the pooling."""

from typing import Any

import pytest
from asgi import HttpApi, Worker
from fakes import FakeWorker, card, pipeline_of

from frontend_service.api.selvage_v1 import codec, embed_rpcs
from frontend_service.domain.limits import Limits, expected_reply
from frontend_service.services.embed import EmbeddingService
from frontend_service.services.rank import RankingService
from selvage.v1 import embedding_pb2, ranking_pb2
from shared.caller import RequestTerms
from shared.errors import InvalidInput, LimitExceeded, ResultTooLarge
from shared.jobs import Encode, RaggedTokens, Score
from shared.vectors import DataType, ScoringMethod, TokenPooling

LATER = RequestTerms.within(3600)
DENSE, MULTI = 1, 3
QUERY, DOCUMENT = 1, 2
BY_DENSE, LATE = ScoringMethod.DENSE.value, ScoringMethod.LATE_INTERACTION.value
POOLED = TokenPooling(pool_factor=3, protected_tokens=2, normalize=False)
"""What the files of a model say."""


def message(**fields: Any) -> embedding_pb2.EmbedRequest:
    chosen: dict[str, Any] = {"texts": ["a b c d e f", "g h i"], "outputs": [MULTI], "pool_factor": 2} | fields
    if chosen.get("tokenized"):
        chosen["texts"] = []
    return embedding_pb2.EmbedRequest(**chosen)


def ids(*counts: int) -> list[embedding_pb2.TokenIds]:
    return [embedding_pb2.TokenIds(ids=[4] * count) for count in counts]


def rerank(**fields: Any) -> ranking_pb2.RerankRequest:
    chosen: dict[str, Any] = {"query": "a", "documents": ["b", "c d e"], "method": LATE, "pool_factor": 2}
    return ranking_pb2.RerankRequest(**chosen | fields)


def worker_of(**changes: Any) -> FakeWorker:
    return FakeWorker(card(max_tokens=100, **changes))


async def embedded(worker: FakeWorker, limits: Limits | None = None, **fields: Any) -> Encode:
    """The work that an Embed asks of the worker."""
    request = embed_rpcs.embed_request_from_pb(message(**fields))
    await EmbeddingService(pipeline_of(worker, limits)).embed(request, LATER)
    work = worker.jobs[-1].work
    assert isinstance(work, Encode)
    return work


async def scored(worker: FakeWorker, limits: Limits | None = None, **fields: Any) -> Score:
    """The work that a Rerank asks of the worker; a Score asks the same."""
    ranking = RankingService(pipeline_of(worker, limits))
    await ranking.rerank(codec.rerank_request_from_pb(rerank(**fields)), LATER)
    chosen = {"queries": ["a"], "documents": ["b", "c d e"], "method": LATE, "pool_factor": 2} | fields
    if not fields.get("explain"):
        await ranking.score(codec.score_request_from_pb(ranking_pb2.ScoreRequest(**chosen)), LATER)
        assert worker.jobs[-1].work == worker.jobs[-2].work
    work = worker.jobs[-1].work
    assert isinstance(work, Score)
    return work


async def test_the_worker_is_told_how_to_pool() -> None:
    """In the data type of the request; 1.3 is the number that was written, not the nearest float32."""
    work = await embedded(worker_of(), pool_factor=1.3, protected_tokens=2, data_type=DataType.INT8.value)
    assert work.pooling == TokenPooling(pool_factor=1.3, protected_tokens=2)
    assert work.data_type is DataType.INT8
    assert (await scored(worker_of(), protected_tokens=0)).pooling == TokenPooling(pool_factor=2, protected_tokens=0)
    assert (await scored(worker_of())).pooling == TokenPooling(pool_factor=2)


@pytest.mark.parametrize(("normalize", "units"), [(None, True), (True, True), (False, False)])
async def test_normalize_is_about_the_rows_that_are_left(normalize: bool | None, units: bool) -> None:
    work = await embedded(worker_of(), normalize=normalize)
    assert work.pooling == TokenPooling(pool_factor=2, normalize=units)
    assert work.normalize_tokens is units
    assert (await scored(worker_of(), normalize=normalize)).pooling == TokenPooling(pool_factor=2, normalize=units)


async def test_the_files_of_a_model_give_the_default() -> None:
    """For documents and for texts that are neither; a request's own factor replaces all of it, and 1 turns it off."""
    for input_type in (0, DOCUMENT):
        assert (
            await embedded(worker_of(token_pooling=POOLED), pool_factor=None, input_type=input_type)
        ).pooling == POOLED
    assert (await scored(worker_of(token_pooling=POOLED), pool_factor=None)).pooling == POOLED
    assert (await embedded(worker_of(token_pooling=POOLED), pool_factor=None, input_type=QUERY)).pooling is None
    assert (await embedded(worker_of(token_pooling=POOLED), pool_factor=None, outputs=[DENSE])).pooling is None
    assert (await scored(worker_of(token_pooling=POOLED), pool_factor=None, method=BY_DENSE)).pooling is None
    assert (await embedded(worker_of(token_pooling=POOLED))).pooling == TokenPooling(pool_factor=2)
    assert (await embedded(worker_of(token_pooling=POOLED), pool_factor=1, return_token_ids=True)).pooling is None
    assert (await scored(worker_of(token_pooling=POOLED), pool_factor=1)).pooling is None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"pool_factor": 0.99}, "pool_factor"),
        ({"pool_factor": 0}, "pool_factor"),
        ({"pool_factor": float("nan")}, "pool_factor"),
        ({"pool_factor": float("inf")}, "pool_factor"),
        ({"outputs": [DENSE]}, "pool_factor"),
        ({"outputs": []}, "pool_factor"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"input_type": QUERY}, "pool_factor"),
        ({"protected_tokens": -1}, "protected_tokens"),
        ({"pool_factor": None, "protected_tokens": 1}, "protected_tokens"),
    ],
    ids=str,
)
async def test_what_makes_no_sense_in_an_embed_is_refused(fields: dict[str, Any], field: str) -> None:
    worker = worker_of()
    with pytest.raises(InvalidInput, match=field) as raised:
        await embedded(worker, **fields)
    assert (raised.value.reason, raised.value.field) == ("INVALID_INPUT", field)
    assert worker.jobs == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"pool_factor": 0.5}, "pool_factor"),
        ({"method": BY_DENSE}, "pool_factor"),
        ({"protected_tokens": -1}, "protected_tokens"),
        ({"pool_factor": None, "protected_tokens": 1}, "protected_tokens"),
        ({"explain": True}, "explain"),
    ],
    ids=str,
)
async def test_what_makes_no_sense_in_a_rerank_is_refused(fields: dict[str, Any], field: str) -> None:
    worker = worker_of()
    with pytest.raises(InvalidInput, match=field) as raised:
        await scored(worker, **fields)
    assert (raised.value.reason, raised.value.field) == ("INVALID_INPUT", field)
    assert worker.jobs == []


async def test_what_the_files_pool_has_no_ids_and_is_not_explained() -> None:
    """The error says which factor would help."""
    for asks, fields in ((embedded, {"return_token_ids": True}), (scored, {"explain": True})):
        with pytest.raises(InvalidInput, match="needs pool_factor 1, not 3"):
            await asks(worker_of(token_pooling=POOLED), pool_factor=None, **fields)


@pytest.mark.parametrize(
    ("asks", "fields", "field", "numbers"),
    [
        (embedded, {}, "texts[0]", "8 .* 7 "),
        (embedded, {"tokenized": ids(7, 9)}, "tokenized[1]", "9 .* 7 "),
        (scored, {"documents": ["b", "c d e f g h"]}, "documents[1]", "8 .* 7 "),
    ],
    ids=["a text", "ids", "a document"],
)
async def test_a_document_that_takes_too_long_to_pool_is_refused(
    asks: Any, fields: dict[str, Any], field: str, numbers: str
) -> None:
    """Both numbers in the message; nothing is computed. Within the limit it is fine."""
    worker = worker_of()
    with pytest.raises(LimitExceeded, match=numbers) as raised:
        await asks(worker, Limits(pooled_tokens=7), **fields)
    assert raised.value.field == field
    assert worker.jobs == []
    await asks(worker, Limits(pooled_tokens=9), **fields)


async def test_the_reply_is_predicted_from_the_pooled_rows() -> None:
    """64 texts of 60 tokens: 2 KiB each unpooled, and less than half with two rows protected and a factor of ten."""
    limits, texts = Limits(message_bytes=100_000), ids(*[60] * 64)
    with pytest.raises(ResultTooLarge):
        await embedded(worker_of(), limits, tokenized=texts, pool_factor=1)
    work = await embedded(worker_of(), limits, tokenized=texts, pool_factor=10, protected_tokens=2)
    assert expected_reply(work, RaggedTokens.of([[4] * 60] * 64), card()).rows == 7 * 64


async def test_a_body_over_http_says_how_many_times_fewer() -> None:
    """As the field of the message does; the model's own factor is turned off so, for the ids of tokens."""
    worker = Worker(token_pooling=POOLED)
    api = HttpApi(worker)
    for body in ({"pool_factor": 2.5}, {"pool_factor": 1, "return_token_ids": True}):
        reply = await api.ask("/v1/multi-vector", {"input": "a b c"} | body)
        assert reply.status == 200, reply.body
    assert [job.work.pooling for job in worker.jobs] == [TokenPooling(pool_factor=2.5), None]
    reply = await api.ask("/v1/multi-vector", {"input": "a", "pool_factor": 0.5})
    assert (reply.status, reply.json["error"]["param"]) == (400, "pool_factor")

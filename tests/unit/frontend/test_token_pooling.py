"""Pooled token rows, from request to job and from rows to answer. Against the reference: test_pooling_parity.py."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes import FakeWorker, card, pipeline_of

from frontend_service import postprocess
from frontend_service.api.selvage_v1 import embed_rpcs
from frontend_service.domain.limits import ExpectedReply, Limits
from frontend_service.domain.requests import EmbedRequest, TokenPooling
from frontend_service.postprocess import pool
from frontend_service.services.embed import EmbeddingService
from frontend_service.services.pipeline import Answer, ServedModel
from selvage.v1 import embedding_pb2
from shared.caller import RequestTerms
from shared.errors import InvalidInput, LimitExceeded, ResultTooLarge, SelvageError
from shared.jobs import Encode, Job, JobResult, Rows
from shared.vectors import DataType, OutputKind

LATER = RequestTerms.within(3600)
DENSE, MULTI = 1, 3
QUERY = 1


class RowsWorker(FakeWorker):
    """Answers with random unit rows of eight dimensions: one a text, and one a token."""

    async def run(self, model: ServedModel, job: Job, expected: ExpectedReply) -> JobResult:
        await super().run(model, job, expected)
        generator = np.random.default_rng(len(job.tokens))
        drawn = [generator.standard_normal((count, 8)) for count in (len(job.tokens), job.tokens.total)]
        self.dense, self.rows = ((rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype("<f4") for rows in drawn)
        with_dense = isinstance(job.work, Encode) and OutputKind.DENSE in job.work.outputs
        return JobResult(
            dense=Rows(dimensions=8, data=self.dense.tobytes()) if with_dense else None,
            tokens=Rows(dimensions=8, data=self.rows.tobytes()),
            row_lengths=job.tokens.lengths,
        )


def made(limits: Limits | None = None) -> tuple[EmbeddingService, RowsWorker]:
    worker = RowsWorker(card(max_tokens=100))
    return EmbeddingService(pipeline_of(worker, limits)), worker


def message(**fields: Any) -> embedding_pb2.EmbedRequest:
    chosen: dict[str, Any] = {"texts": ["a b c d e f", "g h i"], "outputs": [MULTI], "pool_factor": 2} | fields
    if chosen.get("tokenized"):
        chosen["texts"] = []
    return embedding_pb2.EmbedRequest(**chosen)


def ids(*counts: int) -> list[embedding_pb2.TokenIds]:
    return [embedding_pb2.TokenIds(ids=[4] * count) for count in counts]


def response_of(request: EmbedRequest, answer: Answer) -> embedding_pb2.EmbedResponse:
    return embedding_pb2.EmbedResponse.FromString(embed_rpcs.embed_response_to_pb(request, answer).SerializeToString())


@pytest.mark.parametrize("data_type", DataType)
async def test_pooled_rows_come_in_the_data_type_asked_for(data_type: DataType) -> None:
    """The worker is asked for float32; row counts are those after pooling, token counts those computed."""
    embedding, worker = made()
    request = embed_rpcs.embed_request_from_pb(message(data_type=data_type.value, protected_tokens=2))
    answer = await embedding.embed(request, LATER)
    assert worker.jobs[0].work.data_type is DataType.FLOAT32
    expected = [pool(rows, TokenPooling(factor=2, protected=2), True) for rows in np.split(worker.rows, [8])]
    assert answer.result.tokens == postprocess.pack(np.concatenate(expected), data_type)
    response = response_of(request, answer)
    assert list(response.multi_vector.lengths) == [5, 3]
    assert list(response.usage.token_counts) == [8, 5]
    assert response.multi_vector.data_type == data_type.value


async def test_a_dense_output_beside_it_is_packed_alike() -> None:
    embedding, worker = made()
    request = embed_rpcs.embed_request_from_pb(message(data_type=DataType.INT8.value, outputs=[DENSE, MULTI]))
    answer = await embedding.embed(request, LATER)
    response = response_of(request, answer)
    expected = postprocess.pack(worker.dense, DataType.INT8)
    assert (response.dense.data, response.dense.scales) == (expected.data, expected.scales)
    assert response.dense.count == 2
    assert list(response.multi_vector.lengths) == [4, 3]


async def test_a_factor_is_the_number_that_was_written() -> None:
    """1.3, not the nearest float32 below it, which would leave one row more of 13."""
    embedding, _ = made()
    answer = await embedding.embed(embed_rpcs.embed_request_from_pb(message(tokenized=ids(14), pool_factor=1.3)), LATER)
    assert answer.result.row_lengths == (1 + 9,)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"pool_factor": 0.99}, "pool_factor"),
        ({"pool_factor": 0}, "pool_factor"),
        ({"pool_factor": float("nan")}, "pool_factor"),
        ({"pool_factor": float("inf")}, "pool_factor"),
        ({"outputs": [DENSE]}, "pool_factor"),
        ({"outputs": []}, "pool_factor"),
        ({"return_token_ids": True}, "pool_factor"),
        ({"input_type": QUERY}, "pool_factor"),
        ({"protected_tokens": -1}, "protected_tokens"),
        ({"pool_factor": None, "protected_tokens": 1}, "protected_tokens"),
    ],
    ids=str,
)
async def test_what_makes_no_sense_is_refused(fields: dict[str, Any], field: str) -> None:
    embedding, worker = made()
    with pytest.raises(InvalidInput) as raised:
        await embedding.embed(embed_rpcs.embed_request_from_pb(message(**fields)), LATER)
    assert (raised.value.reason, raised.value.field) == ("INVALID_INPUT", field)
    assert field in raised.value.message
    assert worker.jobs == []


@pytest.mark.parametrize(
    ("fields", "limits", "error", "field", "numbers"),
    [
        ({}, {"pooled_tokens": 7}, LimitExceeded, "texts[0]", "8 .* 7 "),
        ({"tokenized": ids(7, 9)}, {"pooled_tokens": 7}, LimitExceeded, "tokenized[1]", "9 .* 7 "),
        ({}, {"vector_elements": 103}, LimitExceeded, "texts", "13 x 8 .* 103"),
        ({"tokenized": ids(13)}, {"vector_elements": 103}, LimitExceeded, "tokenized", "13 x 8 .* 103"),
    ],
    ids=["a text", "ids", "all texts", "all ids"],
)
async def test_what_takes_too_much_memory_is_refused(
    fields: dict[str, Any], limits: dict[str, int], error: type[SelvageError], field: str, numbers: str
) -> None:
    """Both numbers in the message; nothing is computed. One less is fine."""
    embedding, worker = made(Limits(**limits))
    with pytest.raises(error, match=numbers) as raised:
        await embedding.embed(embed_rpcs.embed_request_from_pb(message(**fields)), LATER)
    assert raised.value.field == field
    assert worker.jobs == []
    embedding, worker = made(replace(Limits(), **{key: value + 2 for key, value in limits.items()}))
    await embedding.embed(embed_rpcs.embed_request_from_pb(message(**fields)), LATER)


async def test_the_reply_is_predicted_from_the_pooled_rows() -> None:
    """64 texts of 60 tokens: 2 KiB each unpooled, and less than half with two rows protected and a factor of ten."""
    embedding, worker = made(Limits(message_bytes=100_000))
    with pytest.raises(ResultTooLarge):
        await embedding.embed(
            embed_rpcs.embed_request_from_pb(message(tokenized=ids(*[60] * 64), pool_factor=1)), LATER
        )
    assert worker.jobs == []
    request = embed_rpcs.embed_request_from_pb(message(tokenized=ids(*[60] * 64), pool_factor=10, protected_tokens=2))
    assert (await embedding.embed(request, LATER)).result.row_lengths == (7,) * 64

"""The error table through a real channel, and nothing else lost by it.

INPUT_TOO_LARGE and INTERNAL need a device without room and a broken model: see the unit tests of the engine.
"""

import asyncio
from typing import Any

import grpc
import numpy as np
import pytest

from harness.stack import Stack
from selvage.v1 import embedding_pb2, model_pb2, ranking_pb2
from selvage.v1 import vectors_pb2 as v
from shared.server.options import channel_options
from support.references import Calls, dense, load_of, refusal, words

INVALID = "INVALID_ARGUMENT"


def embed(**fields: Any) -> embedding_pb2.EmbedRequest:
    return embedding_pb2.EmbedRequest(**{"texts": ["striped zebra"]} | fields)


def rerank(**fields: Any) -> ranking_pb2.RerankRequest:
    return ranking_pb2.RerankRequest(**{"query": "a query", "documents": ["a document"]} | fields)


def vectors(count: int, dimensions: int, value: float = 1.0) -> v.MultiVectors:
    data = np.full((count, dimensions), value, dtype="<f4").tobytes()
    return v.MultiVectors(dimensions=dimensions, lengths=[count], data=data)


def signs(rows: int) -> v.MultiVectors:
    return v.MultiVectors(data_type=v.DATA_TYPE_BINARY, dimensions=8, lengths=[rows], data=bytes(rows))


def max_sim(**fields: Any) -> ranking_pb2.MaxSimRequest:
    return ranking_pb2.MaxSimRequest(**{"queries": vectors(2, 4), "documents": vectors(3, 4)} | fields)


def ids(*numbers: int) -> list[embedding_pb2.TokenIds]:
    return [embedding_pb2.TokenIds(ids=numbers)]


LONG = words(400, seed=1)


def case(request: Any, field: str, reason: str = "INVALID_INPUT", status: str = INVALID) -> tuple[Any, str, str, str]:
    return request, status, reason, field


TABLE = {
    "empty list": case(embed(texts=[]), "texts"),
    "both inputs": case(embed(tokenized=ids(101, 102)), "tokenized"),
    "ids with a prompt": case(embed(texts=[], tokenized=ids(101), prompt="p"), "prompt"),
    "no ids": case(embed(texts=[], tokenized=ids()), "tokenized[0]"),
    "unknown data type": case(embed(data_type=77), "data_type"),
    "unknown output": case(embed(outputs=[1, 9]), "outputs[1]"),
    "unspecified output": case(embed(outputs=[0]), "outputs[0]"),
    "unknown input type": case(embed(input_type=9), "input_type"),
    "unknown truncation side": case(embed(truncation_side=9), "truncation_side"),
    "unknown method": case(rerank(method=42), "method"),
    "id to detokenize over the vocabulary": case(model_pb2.DetokenizeRequest(tokenized=ids(1, 99_999)), "tokenized[0]"),
    "id over the vocabulary": case(embed(texts=[], tokenized=ids(30522)), "tokenized[0]"),
    "id below zero": case(embed(texts=[], tokenized=ids(-1)), "tokenized[0]"),
    "too many ids": case(embed(texts=[], tokenized=ids(*[5] * 257)), "tokenized[0]", "INPUT_TOO_LONG"),
    "5 MiB text": case(embed(texts=["ok", "x" * 5 * 2**20]), "texts[1]", "LIMIT_EXCEEDED"),
    "5,000 texts": case(embed(texts=["x"] * 5000), "texts", "LIMIT_EXCEEDED"),
    "20,000 documents": case(rerank(documents=["x"] * 20_000), "documents", "LIMIT_EXCEEDED"),
    "over-long text": case(embed(texts=["ok", LONG]), "texts[1]", "INPUT_TOO_LONG"),
    "over-long document": case(rerank(documents=["ok", LONG]), "documents[1]", "INPUT_TOO_LONG"),
    "over-long query": case(rerank(query=LONG), "query", "INPUT_TOO_LONG"),
    "over the lowered limit": case(embed(texts=["one two three"], max_tokens=4), "texts[0]", "INPUT_TOO_LONG"),
    "max_tokens over the model's": case(embed(max_tokens=257), "max_tokens", "LIMIT_EXCEEDED"),
    "max_tokens of zero": case(embed(max_tokens=0), "max_tokens"),
    "max_tokens without room": case(embed(max_tokens=1), "max_tokens"),
    "dimensions 0": case(embed(dimensions=0), "dimensions", "UNSUPPORTED_DIMENSIONS"),
    "dimensions 10,000": case(embed(dimensions=10_000), "dimensions", "UNSUPPORTED_DIMENSIONS"),
    "sparse output": case(embed(outputs=[2]), "outputs[0]", "UNSUPPORTED_TASK"),
    "sparse_top_k": case(embed(sparse_top_k=5), "sparse_top_k"),
    "token ids of dense rows": case(embed(return_token_ids=True), "return_token_ids"),
    "cross-encoder scores": case(rerank(method=1), "method", "UNSUPPORTED_TASK"),
    "explanation": case(rerank(explain=True), "explain"),
    "texts and vectors": case(max_sim(query_texts=["a"]), "query_texts"),
    "neither texts nor vectors": case(ranking_pb2.MaxSimRequest(documents=vectors(3, 4)), "queries.lengths"),
    "documents too wide for texts": case(
        ranking_pb2.MaxSimRequest(query_texts=["a"], documents=vectors(1, 385)),
        "documents.dimensions",
        "DIMENSION_MISMATCH",
    ),
    "pooling of no token rows": case(embed(pool_factor=2), "pool_factor"),
    "pooling for dense scores": case(rerank(pool_factor=2), "pool_factor"),
    "protected tokens of no pooling": case(rerank(protected_tokens=2), "protected_tokens"),
    "weights": case(rerank(weights=ranking_pb2.HybridWeights(dense=1)), "weights"),
    "top_n of zero": case(rerank(top_n=0), "top_n"),
    "no documents": case(rerank(documents=[]), "documents"),
    "unknown prompt": case(embed(prompt_name="legal"), "prompt_name", "UNSUPPORTED_TASK"),
    "unknown model": case(embed(model="gpt"), "model", "UNKNOWN_MODEL", "NOT_FOUND"),
    "unequal pairs": case(
        ranking_pb2.ScoreRequest(queries=["a"], documents=["b", "c"], layout=v.LAYOUT_PAIRS), "documents"
    ),
    "wrong byte count": case(max_sim(documents=v.MultiVectors(dimensions=4, lengths=[3], data=b"123")), "documents"),
    "missing scales": case(
        max_sim(documents=v.MultiVectors(data_type=v.DATA_TYPE_INT8, dimensions=4, lengths=[1], data=b"1234")),
        "documents",
    ),
    "negative length": case(
        max_sim(documents=v.MultiVectors(dimensions=4, lengths=[-1, 2], data=b"0" * 16)), "documents"
    ),
    "no vectors": case(max_sim(queries=v.MultiVectors(dimensions=4)), "queries.lengths"),
    "unequal dimensions": case(max_sim(documents=vectors(3, 5)), "documents.dimensions", "DIMENSION_MISMATCH"),
    "NaN vectors": case(max_sim(queries=vectors(2, 4, float("nan"))), "queries.data"),
    "infinite vectors": case(max_sim(documents=vectors(2, 4, float("inf"))), "documents.data"),
    "products that overflow": case(
        max_sim(queries=vectors(2, 4, 3e38), documents=vectors(2, 4, 3e38)), "documents.data"
    ),
    "too many products": case(max_sim(queries=signs(150_000), documents=signs(150_000)), "", "LIMIT_EXCEEDED"),
    "a long unknown name": case(embed(model="x" * 20_000), "model", "UNKNOWN_MODEL", "NOT_FOUND"),
    "a long prompt": case(embed(prompt="x" * 2**21), "prompt", "LIMIT_EXCEEDED"),
    "second output unknown to the model": case(embed(outputs=[3, 2]), "outputs[1]", "UNSUPPORTED_TASK"),
    "unknown vector type": case(
        max_sim(queries=v.MultiVectors(data_type=66, dimensions=1, lengths=[1], data=b"1")), "queries.data_type"
    ),
    "a result over 64 MiB": case(
        embed(texts=[words(250, seed=2)] * 300, outputs=[v.OUTPUT_KIND_MULTI_VECTOR]), "", "RESULT_TOO_LARGE"
    ),
}


def method_of(calls: Calls, request: Any) -> Any:
    return {
        "EmbedRequest": calls.embedding.Embed,
        "RerankRequest": calls.ranking.Rerank,
        "ScoreRequest": calls.ranking.Score,
        "MaxSimRequest": calls.ranking.MaxSim,
        "DetokenizeRequest": calls.model.Detokenize,
    }[type(request).__name__]


@pytest.mark.parametrize("case", TABLE)
async def test_bad_input_gets_the_documented_error(calls: Calls, case: str) -> None:
    """Status, reason and field, as the table has them."""
    request, *expected = TABLE[case]
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await method_of(calls, request)(request, timeout=240)
    assert refusal(raised.value) == tuple(expected)
    if case == "over-long text":
        assert "402 tokens" in raised.value.details()
        assert "256" in raised.value.details()
    assert "zebra" not in (raised.value.details() or "")


async def test_random_bytes_are_no_message(pair: Stack) -> None:
    method = pair.channel.unary_unary("/selvage.v1.EmbeddingService/Embed")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await method(b"\xff\x00random bytes")
    assert refusal(raised.value) == (INVALID, "INVALID_INPUT", "")
    assert "pb2" not in raised.value.details()


async def test_a_17_mib_message_is_refused_by_the_transport(pair: Stack) -> None:
    options = [*channel_options(), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(pair.frontends[0].address, options=options) as channel:
        calls = Calls(channel)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await calls.embedding.Embed(embed(texts=["x" * (17 * 2**20)]), timeout=240)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await calls.embedding.Embed(embed())).dense.count == 1


async def test_a_deadline_that_passes_frees_the_worker(pair: Stack, calls: Calls) -> None:
    """DEADLINE_EXCEEDED, and what waited of the request is gone."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await calls.ranking.Rerank(rerank(documents=[words(250, seed=each) for each in range(600)]), timeout=0.7)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await calls.embedding.Embed(embed())
    assert (await load_of(pair)).queued_tokens == 0


async def test_bad_requests_lose_nothing_else(calls: Calls) -> None:
    expected = dense(await calls.embedding.Embed(embed()))

    async def bad(case: str) -> None:
        with pytest.raises(grpc.aio.AioRpcError):
            await method_of(calls, TABLE[case][0])(TABLE[case][0])

    async def good() -> None:
        assert np.abs(dense(await calls.embedding.Embed(embed())) - expected).max() < 1e-6

    names = ["empty list", "over-long text", "NaN vectors", "dimensions 0", "unknown model"] * 4
    await asyncio.gather(*(bad(name) for name in names), *(good() for _ in range(20)))

"""The error table through a real channel, and nothing else lost by it.

INPUT_TOO_LARGE and INTERNAL need a device without room and a broken model: see the unit tests of the engine.
"""

import asyncio
from typing import Any

import grpc
import numpy as np
import pytest

from harness.stack import Stack, stack
from selvage.v1 import embedding_pb2, model_pb2, ranking_pb2
from selvage.v1 import vectors_pb2 as v
from shared.server.options import channel_options
from support.random_models import random_model
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
TABLE = {
    "empty list": (embed(texts=[]), INVALID, "INVALID_INPUT", "texts"),
    "both inputs": (embed(tokenized=ids(101, 102)), INVALID, "INVALID_INPUT", "tokenized"),
    "ids with a prompt": (embed(texts=[], tokenized=ids(101), prompt="p"), INVALID, "INVALID_INPUT", "prompt"),
    "no ids": (embed(texts=[], tokenized=ids()), INVALID, "INVALID_INPUT", "tokenized[0]"),
    "unknown data type": (embed(data_type=77), INVALID, "INVALID_INPUT", "data_type"),
    "unknown output": (embed(outputs=[1, 9]), INVALID, "INVALID_INPUT", "outputs[1]"),
    "unspecified output": (embed(outputs=[0]), INVALID, "INVALID_INPUT", "outputs[0]"),
    "unknown input type": (embed(input_type=9), INVALID, "INVALID_INPUT", "input_type"),
    "unknown truncation side": (embed(truncation_side=9), INVALID, "INVALID_INPUT", "truncation_side"),
    "unknown method": (rerank(method=42), INVALID, "INVALID_INPUT", "method"),
    "id over the vocabulary": (embed(texts=[], tokenized=ids(30522)), INVALID, "INVALID_INPUT", "tokenized[0]"),
    "id below zero": (embed(texts=[], tokenized=ids(-1)), INVALID, "INVALID_INPUT", "tokenized[0]"),
    "too many ids": (embed(texts=[], tokenized=ids(*[5] * 257)), INVALID, "INPUT_TOO_LONG", "tokenized[0]"),
    "5 MiB text": (embed(texts=["ok", "x" * 5 * 2**20]), INVALID, "LIMIT_EXCEEDED", "texts[1]"),
    "5,000 texts": (embed(texts=["x"] * 5000), INVALID, "LIMIT_EXCEEDED", "texts"),
    "20,000 documents": (rerank(documents=["x"] * 20_000), INVALID, "LIMIT_EXCEEDED", "documents"),
    "over-long text": (embed(texts=["ok", LONG]), INVALID, "INPUT_TOO_LONG", "texts[1]"),
    "over-long document": (rerank(documents=["ok", LONG]), INVALID, "INPUT_TOO_LONG", "documents[1]"),
    "over-long query": (rerank(query=LONG), INVALID, "INPUT_TOO_LONG", "query"),
    "over the lowered limit": (embed(texts=["one two three"], max_tokens=4), INVALID, "INPUT_TOO_LONG", "texts[0]"),
    "max_tokens over the model's": (embed(max_tokens=257), INVALID, "LIMIT_EXCEEDED", "max_tokens"),
    "max_tokens of zero": (embed(max_tokens=0), INVALID, "INVALID_INPUT", "max_tokens"),
    "max_tokens without room": (embed(max_tokens=1), INVALID, "INVALID_INPUT", "max_tokens"),
    "dimensions 0": (embed(dimensions=0), INVALID, "UNSUPPORTED_DIMENSIONS", "dimensions"),
    "dimensions 10,000": (embed(dimensions=10_000), INVALID, "UNSUPPORTED_DIMENSIONS", "dimensions"),
    "sparse output": (embed(outputs=[2]), INVALID, "UNSUPPORTED_TASK", "outputs[0]"),
    "sparse_top_k": (embed(sparse_top_k=5), INVALID, "INVALID_INPUT", "sparse_top_k"),
    "token ids of dense rows": (embed(return_token_ids=True), INVALID, "INVALID_INPUT", "return_token_ids"),
    "cross-encoder scores": (rerank(method=1), INVALID, "UNSUPPORTED_TASK", "method"),
    "explanation": (rerank(explain=True), INVALID, "INVALID_INPUT", "explain"),
    "texts and vectors": (max_sim(query_texts=["a"]), INVALID, "INVALID_INPUT", "query_texts"),
    "neither texts nor vectors": (
        ranking_pb2.MaxSimRequest(documents=vectors(3, 4)),
        INVALID,
        "INVALID_INPUT",
        "queries.lengths",
    ),
    "documents too wide for texts": (
        ranking_pb2.MaxSimRequest(query_texts=["a"], documents=vectors(1, 385)),
        INVALID,
        "DIMENSION_MISMATCH",
        "documents.dimensions",
    ),
    "pooling of no token rows": (embed(pool_factor=2), INVALID, "INVALID_INPUT", "pool_factor"),
    "weights": (rerank(weights=ranking_pb2.HybridWeights(dense=1)), INVALID, "INVALID_INPUT", "weights"),
    "top_n of zero": (rerank(top_n=0), INVALID, "INVALID_INPUT", "top_n"),
    "no documents": (rerank(documents=[]), INVALID, "INVALID_INPUT", "documents"),
    "unknown prompt": (embed(prompt_name="legal"), INVALID, "UNSUPPORTED_TASK", "prompt_name"),
    "unknown model": (embed(model="gpt"), "NOT_FOUND", "UNKNOWN_MODEL", "model"),
    "unequal pairs": (
        ranking_pb2.ScoreRequest(queries=["a"], documents=["b", "c"], layout=v.LAYOUT_PAIRS),
        INVALID,
        "INVALID_INPUT",
        "documents",
    ),
    "wrong byte count": (
        max_sim(documents=v.MultiVectors(dimensions=4, lengths=[3], data=b"123")),
        INVALID,
        "INVALID_INPUT",
        "documents",
    ),
    "missing scales": (
        max_sim(documents=v.MultiVectors(data_type=v.DATA_TYPE_INT8, dimensions=4, lengths=[1], data=b"1234")),
        INVALID,
        "INVALID_INPUT",
        "documents",
    ),
    "negative length": (
        max_sim(documents=v.MultiVectors(dimensions=4, lengths=[-1, 2], data=b"0" * 16)),
        INVALID,
        "INVALID_INPUT",
        "documents",
    ),
    "no vectors": (
        max_sim(queries=v.MultiVectors(dimensions=4)),
        INVALID,
        "INVALID_INPUT",
        "queries.lengths",
    ),
    "unequal dimensions": (
        max_sim(documents=vectors(3, 5)),
        INVALID,
        "DIMENSION_MISMATCH",
        "documents.dimensions",
    ),
    "NaN vectors": (max_sim(queries=vectors(2, 4, float("nan"))), INVALID, "INVALID_INPUT", "queries.data"),
    "infinite vectors": (max_sim(documents=vectors(2, 4, float("inf"))), INVALID, "INVALID_INPUT", "documents.data"),
    "products that overflow": (
        max_sim(queries=vectors(2, 4, 3e38), documents=vectors(2, 4, 3e38)),
        INVALID,
        "INVALID_INPUT",
        "documents.data",
    ),
    "too many products": (
        max_sim(queries=signs(150_000), documents=signs(150_000)),
        INVALID,
        "LIMIT_EXCEEDED",
        "",
    ),
    "a long unknown name": (embed(model="x" * 20_000), "NOT_FOUND", "UNKNOWN_MODEL", "model"),
    "a long prompt": (embed(prompt="x" * 2**21), INVALID, "LIMIT_EXCEEDED", "prompt"),
    "second output unknown to the model": (embed(outputs=[3, 2]), INVALID, "UNSUPPORTED_TASK", "outputs[1]"),
    "unknown vector type": (
        max_sim(queries=v.MultiVectors(data_type=66, dimensions=1, lengths=[1], data=b"1")),
        INVALID,
        "INVALID_INPUT",
        "queries.data_type",
    ),
    "a result over 64 MiB": (
        embed(texts=[words(250, seed=2)] * 300, outputs=[v.OUTPUT_KIND_MULTI_VECTOR]),
        INVALID,
        "RESULT_TOO_LARGE",
        "",
    ),
}


def method_of(calls: Calls, request: Any) -> Any:
    return {
        "EmbedRequest": calls.embedding.Embed,
        "RerankRequest": calls.ranking.Rerank,
        "ScoreRequest": calls.ranking.Score,
        "MaxSimRequest": calls.ranking.MaxSim,
    }[type(request).__name__]


@pytest.mark.parametrize("case", TABLE)
async def test_bad_input_gets_the_documented_error(calls: Calls, case: str) -> None:
    """Status, reason and field, as the table has them."""
    request, *expected = TABLE[case]
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await method_of(calls, request)(request, timeout=240)
    assert refusal(raised.value) == tuple(expected)
    assert "zebra" not in (raised.value.details() or "")


async def test_the_message_names_both_numbers(calls: Calls) -> None:
    """An over-long text says how long it is and what the limit is."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await calls.embedding.Embed(embed(texts=[LONG]))
    assert "402 tokens" in raised.value.details()
    assert "256" in raised.value.details()


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


LONG_WORK = rerank(documents=[words(250, seed=index) for index in range(1500)])


async def test_a_deadline_that_passes_frees_the_worker(pair: Stack, calls: Calls) -> None:
    """DEADLINE_EXCEEDED, and what waited of the request is gone."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await calls.ranking.Rerank(LONG_WORK, timeout=1.5)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await calls.embedding.Embed(embed())
    assert (await load_of(pair)).queued_tokens == 0


async def test_a_call_without_a_deadline_gets_one() -> None:
    """The server's own word on it, with its reason; the worker is free again."""
    async with stack(random_model("tiny-bert"), frontend={"default-timeout": 0.3}) as pair:
        calls = Calls(pair.channel)
        texts = [
            f"w{index // 800} " + " ".join(f"w{(index + each) % 800}" for each in range(499)) for index in range(600)
        ]
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await calls.embedding.Embed(embed(texts=texts))
        assert refusal(raised.value)[:2] == ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED")
        await calls.embedding.Embed(embed(), timeout=240)
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


async def test_an_over_long_text_with_truncate_is_served(calls: Calls) -> None:
    response = await calls.embedding.Embed(embed(texts=[LONG], truncate=True))
    assert list(response.usage.truncated) == [True]


async def test_detokenize_refuses_ids_outside_the_vocabulary(calls: Calls) -> None:
    request = model_pb2.DetokenizeRequest(tokenized=ids(1, 99_999))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await calls.model.Detokenize(request)
    assert refusal(raised.value) == (INVALID, "INVALID_INPUT", "tokenized[0]")

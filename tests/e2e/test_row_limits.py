"""One text with more token rows than a message holds, through both services: refused before anything is computed."""

from collections.abc import AsyncIterator

import grpc
import pytest

from harness.stack import Stack, stack
from selvage import Client
from selvage.errors import ResultTooLarge
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedStreamRequest, TokenIds
from selvage.v1.vectors_pb2 import OUTPUT_KIND_MULTI_VECTOR
from support.random_models import random_model
from support.references import Calls, refusal
from support.scraping import scrape
from support.tiny import random_ids

FITTING = (64 * 1024 * 1024 - 64 * 1024) // 4096 - 1
"""Tokens whose rows, of 1,024 float32, fit into a message beside its other fields."""


@pytest.fixture(scope="module")
async def pair(nursery: object) -> AsyncIterator[Stack]:
    worker = {"step-milliseconds": 0, "chunk-tokens": 64, "max-tokens": FITTING + 1, "metrics": "127.0.0.1:0"}
    async with stack(random_model("long-wide-qwen3"), worker=worker) as running:
        yield running


async def test_a_text_of_too_many_rows_is_refused_by_name(pair: Stack) -> None:
    """By Embed, EmbedStream and the client, with both sizes and what helps; the worker gets no job."""
    short, long = random_ids([5, FITTING + 1])
    request = EmbedRequest(tokenized=[TokenIds(ids=short), TokenIds(ids=long)], outputs=[OUTPUT_KIND_MULTI_VECTOR])
    embedding = Calls(pair.channel).embedding
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await embedding.Embed(request)
    assert refusal(raised.value) == ("INVALID_ARGUMENT", "RESULT_TOO_LARGE", "tokenized[1]")
    [reply] = [reply async for reply in embedding.EmbedStream(iter([EmbedStreamRequest(id=7, request=request)]))]
    assert (reply.id, reply.error.reason, reply.error.field) == (7, "RESULT_TOO_LARGE", "tokenized[1]")
    assert reply.error.message == raised.value.details()
    sizes = f"tokenized[1] alone would have {4096 * (FITTING + 1) + 8} bytes", "67108864"
    assert all(word in reply.error.message for word in (*sizes, "FLOAT16", "INT8", "dimensions", "fewer tokens"))
    with Client(pair.frontends[0].address) as client, pytest.raises(ResultTooLarge) as told:
        list(client.embed_stream(iter([short] * 600 + [long]), output="multi_vector"))
    assert told.value.field == "tokenized[600]"
    with Client(pair.frontends[0].address) as client, pytest.raises(ResultTooLarge) as told:
        client.embed([short] * 600 + [long], output="multi_vector")
    assert told.value.field == "tokenized[600]"
    page = await scrape(pair.workers[0])
    assert page.total("selvage_tokens_total") < FITTING

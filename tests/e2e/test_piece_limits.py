"""Long texts in pieces through both services: what fits is computed, what does not is refused on arrival."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import grpc
import numpy as np
import pytest
import torch
from transformers import AutoModel

from harness.stack import Stack, stack
from selvage.v1 import embedding_pb2
from support.references import Calls, dense, refusal
from support.scraping import scrape
from support.tiny import reader, write_encoder, write_json

POSITIONS, FITTING = 2048, 1024
"""Tokens that the model reads, and those whose keys, values and hidden states fit into a mebibyte: 1 KiB a token."""
WORDS = [f"w{number % 90}" for number in range(POSITIONS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long")
    write_encoder(path, "tiny-qwen3")
    config = json.loads((path / "config.json").read_text())
    return write_json(path, config=config | {"max_position_embeddings": POSITIONS})


@pytest.fixture(scope="module")
async def pair(nursery: object, folder: Path) -> AsyncIterator[Stack]:
    worker = {"chunk-tokens": 64, "cache-megabytes": 1, "step-milliseconds": 1, "metrics": "127.0.0.1:0"}
    async with stack(str(folder), worker=worker, frontend={"http-listen": "127.0.0.1:0"}) as running:
        yield running


async def test_a_text_that_cannot_fit_is_refused_on_arrival(pair: Stack) -> None:
    """Over gRPC and HTTP, with the text's name, both numbers and the setting; the worker gets no job."""
    message = (
        f"texts[1] has {FITTING + 3} tokens, the limit is {FITTING} (the worker's --cache-megabytes); "
        "truncate would cut it"
    )
    too_long = " ".join(WORDS[: FITTING + 1])
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await Calls(pair.channel).embedding.Embed(embedding_pb2.EmbedRequest(texts=["w1", too_long]))
    assert refusal(raised.value) == ("INVALID_ARGUMENT", "INPUT_TOO_LONG", "texts[1]")
    assert raised.value.details() == message
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{pair.frontends[0].http_url}/v1/embeddings", json={"input": ["w1", too_long]}) as reply,
    ):
        assert reply.status == 400
        error = (await reply.json())["error"]
        assert (error["message"], error["param"]) == (message, "input[1]")


async def test_what_fits_is_computed_in_pieces(pair: Stack, folder: Path) -> None:
    """A text of as many tokens, and one that is cut off there, give what transformers gives for the whole text;
    afterwards nothing is kept of either."""
    embedding = Calls(pair.channel).embedding
    longest = " ".join(WORDS[: FITTING - 2])
    reply = await embedding.Embed(embedding_pb2.EmbedRequest(texts=[longest, "w1"], normalize=True))
    cut = await embedding.Embed(embedding_pb2.EmbedRequest(texts=[" ".join(WORDS)], truncate=True, normalize=True))
    with torch.inference_mode():
        ids = reader()(longest, return_tensors="pt").input_ids
        mean = AutoModel.from_pretrained(folder)(ids).last_hidden_state[0].mean(dim=0)
    expected = (mean / mean.norm()).numpy()
    assert np.abs(dense(reply)[0] - expected).max() < 1e-5
    assert np.abs(dense(cut)[0] - expected).max() < 1e-5
    page = await scrape(pair.workers[0])
    assert page.total("selvage_pieces_total") >= 4  # what one step computes of a text counts as one
    assert page.total("selvage_cache_bytes", state="kept") == 0
    assert page.total("selvage_cache_bytes", state="limit") == FITTING * 1024
    assert page.total("selvage_jobs_waiting_for_cache") == 0

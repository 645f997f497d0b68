"""Other models and number formats through both services."""

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from harness.stack import stack
from selvage.v1 import embedding_pb2 as pb
from selvage.v1 import model_pb2, ranking_pb2
from selvage.v1 import vectors_pb2 as v
from support.random_models import random_model
from support.references import Calls, dense, words


@pytest.mark.slow
async def test_bfloat16_keeps_its_distance_to_float32_small(oracle: SentenceTransformer) -> None:
    """On real weights: the cosine of every row is at least 0.999."""
    texts = [words(1 + 5 * index, seed=index) for index in range(50)]
    async with stack("minilm", worker={"dtype": "bfloat16"}) as pair:
        calls = Calls(pair.channel)
        rows = dense(await calls.embedding.Embed(pb.EmbedRequest(texts=texts, truncate=True)))
        assert (await calls.model.GetModel(model_pb2.GetModelRequest())).card.dtype == "bfloat16"
    assert (rows * oracle.encode(texts)).sum(axis=1).min() > 0.999


@pytest.mark.parametrize("model", ["tiny-roberta", "tiny-qwen3"])
async def test_prompts_by_name_by_input_type_and_literal(model: str) -> None:
    """All three ways to say the same thing give the same rows; and a rerank uses the query prompt by itself."""
    async with stack(random_model(model)) as pair:
        calls = Calls(pair.channel)
        card = (await calls.model.GetModel(model_pb2.GetModelRequest())).card
        prompt = card.prompts["query"]
        requests = [
            pb.EmbedRequest(texts=["w9 w8"], prompt_name="query"),
            pb.EmbedRequest(texts=["w9 w8"], input_type=v.INPUT_TYPE_QUERY),
            pb.EmbedRequest(texts=["w9 w8"], prompt=prompt),
            pb.EmbedRequest(texts=[prompt + "w9 w8"]),
        ]
        rows = [dense(await calls.embedding.Embed(request)) for request in requests]
        assert all(np.array_equal(each, rows[0]) for each in rows)
        plain = await calls.embedding.Embed(pb.EmbedRequest(texts=["w9 w8"], input_type=v.INPUT_TYPE_DOCUMENT))
        assert not np.allclose(dense(plain), rows[0], atol=1e-3)
        ranked = await calls.ranking.Rerank(ranking_pb2.RerankRequest(query="w9 w8", documents=["w9 w8"]))
        assert ranked.results[0].score == pytest.approx(float((rows[0] @ dense(plain).T)[0, 0]), abs=1e-5)
        literal = ranking_pb2.RerankRequest(query="w9 w8", documents=["w9 w8"], instruction="")
        assert (await calls.ranking.Rerank(literal)).results[0].score == pytest.approx(1.0, abs=1e-5)

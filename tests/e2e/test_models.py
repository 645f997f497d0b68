"""Other models and number formats through both services."""

import pytest
from sentence_transformers import SentenceTransformer

from harness.stack import stack
from selvage.v1 import embedding_pb2 as pb
from selvage.v1 import model_pb2
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

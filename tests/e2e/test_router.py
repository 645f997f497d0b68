"""Inference-free SPLADE through both services, equal to sentence-transformers."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selvage.v1 import embedding_pb2, model_pb2, ranking_pb2
from selvage.v1 import vectors_pb2 as v
from support import asymmetric
from support.asymmetric import TEXTS, inference_free
from support.references import Calls, near, sparse_rows
from support.served import served

KINDS = {
    "encode_query": v.INPUT_TYPE_QUERY,
    "encode_document": v.INPUT_TYPE_DOCUMENT,
    "encode": v.INPUT_TYPE_UNSPECIFIED,
}


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """An inference-free SPLADE on disk, and sentence-transformers' own."""
    folder = tmp_path_factory.mktemp("inference-free")
    return folder / "saved", inference_free(folder, prompts={"query": "w11 w12 ", "document": ""})


@pytest.fixture(scope="module")
async def calls(oracle: tuple[Path, Any]) -> AsyncIterator[Calls]:
    async with served(oracle[0]) as made:
        yield made


async def test_inference_free_splade(calls: Calls, oracle: tuple[Path, Any]) -> None:
    """Vectors of queries, documents and texts without a kind; scores and a ranking over both sides."""
    theirs = oracle[1]
    for name, kind in KINDS.items():
        reply = await calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=TEXTS, input_type=kind))  # type: ignore[arg-type]
        near(sparse_rows(reply, 1000), asymmetric.sparse(getattr(theirs, name)(TEXTS)), 1e-5)
    queries, documents = (asymmetric.sparse(by(TEXTS)) for by in (theirs.encode_query, theirs.encode_document))
    matrix = await calls.ranking.Score(ranking_pb2.ScoreRequest(queries=TEXTS[:2], documents=TEXTS))
    near(np.reshape(matrix.scores, (2, -1)), queries[:2] @ documents.T, 1e-5)
    ranked = await calls.ranking.Rerank(ranking_pb2.RerankRequest(query=TEXTS[3], documents=TEXTS))
    expected = queries[3] @ documents.T
    scores = np.array([result.score for result in ranked.results])
    near(scores, np.sort(expected)[::-1], 1e-5)
    near(scores, expected[[result.index for result in ranked.results]], 1e-5)


async def test_the_card_tells_the_way_of_queries(calls: Calls) -> None:
    """To clients too; Tokenize shows texts as each side reads them."""
    card = (await calls.model.GetModel(model_pb2.GetModelRequest())).card
    assert (card.sparse_head, card.query_route.sparse_head) == ("splade", "static")
    assert card.query_route.table_digest
    shown = {
        kind: (await calls.model.Tokenize(model_pb2.TokenizeRequest(texts=["w1"], input_type=kind))).texts[0]  # type: ignore[arg-type]
        for kind in KINDS.values()
    }
    assert list(shown[v.INPUT_TYPE_QUERY].tokens) == ["w11", "w12", "w1"]
    assert list(shown[v.INPUT_TYPE_DOCUMENT].tokens) == ["[CLS]", "w1", "[SEP]"]
    assert list(shown[v.INPUT_TYPE_UNSPECIFIED].tokens) == ["[CLS]", "w1", "[SEP]"]

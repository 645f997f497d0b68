"""ColQwen2 through both services: rows of queries, MaxSim with given rows of images; texts as documents are refused."""

from pathlib import Path

import grpc
import numpy as np
import pytest

from selvage.v1 import embedding_pb2, model_pb2, ranking_pb2, vectors_pb2
from support.colqwen2 import QUERIES, WIDTH, expected_rows, write_colqwen2
from support.references import multi_vectors, near, packed, refusal
from support.served import served
from support.tiny import unit_rows

QUERY, DOCUMENT = vectors_pb2.INPUT_TYPE_QUERY, vectors_pb2.INPUT_TYPE_DOCUMENT
MULTI = vectors_pb2.OUTPUT_KIND_MULTI_VECTOR
WHY = "documents of this model are images, which are not served: only queries are"


async def test_queries_against_given_vectors_of_images(tmp_path: Path) -> None:
    folder = write_colqwen2(tmp_path)
    queries = expected_rows(folder, QUERIES)
    images = [unit_rows(rows, WIDTH, seed=rows).numpy() for rows in (5, 3, 9)]
    scores = [[(query @ image.T).max(axis=1).sum() for image in images] for query in queries]
    given, asked = (
        vectors_pb2.MultiVectors(
            data_type=vectors_pb2.DATA_TYPE_FLOAT32,
            dimensions=WIDTH,
            lengths=[len(each) for each in rows],
            data=packed(rows),
        )
        for rows in (images, queries)
    )
    async with served(folder) as calls:
        request = embedding_pb2.EmbedRequest(texts=QUERIES, input_type=QUERY, outputs=[MULTI])
        rows = multi_vectors(await calls.embedding.Embed(request))
        by_texts = await calls.ranking.MaxSim(ranking_pb2.MaxSimRequest(query_texts=QUERIES, documents=given))
        by_rows = await calls.ranking.MaxSim(ranking_pb2.MaxSimRequest(queries=asked, documents=given))
        shown = await calls.model.Tokenize(model_pb2.TokenizeRequest(texts=QUERIES, input_type=QUERY))
        for call, request, field in (
            (calls.embedding.Embed, embedding_pb2.EmbedRequest(texts=["a"], input_type=DOCUMENT), "input_type"),
            (calls.embedding.Embed, embedding_pb2.EmbedRequest(texts=["a"]), "input_type"),
            (calls.ranking.Rerank, ranking_pb2.RerankRequest(query="a", documents=["b"]), "documents"),
            (calls.ranking.Score, ranking_pb2.ScoreRequest(queries=["a"], documents=["b"]), "documents"),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match=WHY) as refused:
                await call(request)
            assert refusal(refused.value) == ("INVALID_ARGUMENT", "UNSUPPORTED_TASK", field)
    assert [len(each) for each in rows] == [len(text.ids) for text in shown.texts]
    near(np.concatenate(rows), np.concatenate(queries), 1e-5)
    for reply in (by_texts, by_rows):
        near(np.reshape(reply.scores, np.shape(scores)), scores, 1e-4)

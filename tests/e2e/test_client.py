"""The Python client against real services: what the stubs give, by every method, whole or in parts.

`Client` is `AsyncClient` on a loop in a thread, so one of them shows both.
"""

import asyncio
from typing import Any

import numpy as np
import pytest

from harness.stack import Stack
from selvage import Client, errors
from selvage.v1 import embedding_pb2, model_pb2, ranking_pb2
from selvage.v1 import vectors_pb2 as v
from support.references import Calls, dense, multi_vectors, near, sparse_rows

TEXTS = [f"w{number} w{number * 7 % 90} " * (1 + number % 9) for number in range(1100)]
FEW = TEXTS[:40]


async def in_thread(client: Client, name: str, *arguments: Any, **options: Any) -> Any:
    """A client that blocks would hold up the fixtures' event loop."""
    found = await asyncio.to_thread(getattr(client, name), *arguments, **options)
    return await asyncio.to_thread(list, found) if name == "embed_stream" else found


async def test_dense_vectors(tiny: Stack) -> None:
    """In every data type, in parts and whole; the rows of one call within what batches differ by."""
    calls = Calls(tiny.channel)
    expected = dense(await calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=TEXTS)))
    with Client(tiny.frontends[0].address) as client:
        found = await in_thread(client, "embed", TEXTS)
        assert found.flags.writeable
        near(found, expected, 1e-6)
        near(await in_thread(client, "embed", TEXTS[0]), expected[0], 1e-6)
        near(await in_thread(client, "embed", TEXTS, data_type="float16"), expected, 2e-3)
        near(await in_thread(client, "embed", TEXTS, data_type="bfloat16"), expected, 1e-2)
        signs = np.unpackbits(await in_thread(client, "embed", FEW, data_type="binary"), axis=1)
        assert (signs == (expected[: len(FEW)] >= 0))[np.abs(expected[: len(FEW)]) > 1e-5].all()
        numbers = await in_thread(client, "embed", TEXTS, output=["dense"], data_type="int8")
        assert numbers.dense.dtype == np.int8
        near(numbers.dense * numbers.dense_scales[:, None], expected, 1e-2)
        response = await calls.embedding.Embed(embedding_pb2.EmbedRequest(texts=FEW, dimensions=8, normalize=True))
        near(await in_thread(client, "embed", FEW, dimensions=8, normalize=True), dense(response), 1e-6)
        tokens = await in_thread(client, "tokenize", FEW)
        near(await in_thread(client, "embed", [each.ids for each in tokens]), expected[: len(FEW)], 1e-6)


async def test_sparse_and_token_vectors(bge: Stack) -> None:
    """As dicts, as a matrix of scipy, as arrays; all of one pass, and each alone."""
    calls = Calls(bge.channel)
    kinds = [v.OUTPUT_KIND_DENSE, v.OUTPUT_KIND_SPARSE, v.OUTPUT_KIND_MULTI_VECTOR]
    request = embedding_pb2.EmbedRequest(texts=TEXTS, outputs=kinds, return_token_ids=True)
    response = await calls.embedding.Embed(request)
    vocabulary = (await calls.model.GetModel(model_pb2.GetModelRequest())).card.vocabulary_size
    expected = sparse_rows(response, vocabulary)
    with Client(bge.frontends[0].address) as client:
        outputs = ["dense", "sparse", "multi_vector"]
        found = await in_thread(client, "embed", TEXTS, output=outputs, sparse_format="csr", return_token_ids=True)
        near(found.dense, dense(response), 1e-6)
        near(found.sparse.toarray(), expected, 1e-5)
        for ours, theirs in zip(found.multi_vector, multi_vectors(response), strict=True):
            near(ours, theirs, 1e-5)
        assert np.concatenate(found.token_ids).tolist() == list(response.multi_vector.token_ids)
        assert found.token_counts.tolist() == list(response.usage.token_counts)
        assert found.model == response.model
        alone = await in_thread(client, "embed", FEW, output="sparse", sparse_top_k=2)
        assert max(map(len, alone)) == 2
        for row, weights in zip(expected, alone, strict=False):
            near([*weights.values(), 0], [*row[list(weights)], 0], 1e-5)  # some texts have no weight
        pooled = await in_thread(client, "embed", FEW, output="multi_vector", pool_factor=2)
        whole = await in_thread(client, "embed", FEW, output="multi_vector")
        assert sum(map(len, pooled)) < 0.8 * sum(map(len, whole))


async def test_rankings(bge: Stack) -> None:
    calls = Calls(bge.channel)
    methods = {"dense": 3, "sparse": 4, "late_interaction": 2, "hybrid": 5}
    with Client(bge.frontends[0].address) as client:
        for method, number in methods.items():
            request = ranking_pb2.RerankRequest(query=TEXTS[3], documents=TEXTS, method=number, top_n=20)
            response = await calls.ranking.Rerank(request)
            found = await in_thread(client, "rerank", TEXTS[3], TEXTS, method=method, top_n=20, return_documents=True)
            near([each.score for each in found], [each.score for each in response.results], 1e-5)
            assert [each.document for each in found] == [TEXTS[each.index] for each in found]
            matrix = await calls.ranking.Score(
                ranking_pb2.ScoreRequest(queries=FEW[:3], documents=FEW, method=number, layout=v.LAYOUT_MATRIX)
            )
            scores = await in_thread(client, "score", FEW[:3], FEW, method=method)
            near(scores, np.reshape(matrix.scores, (3, len(FEW))), 1e-5)
        weights = {"dense": 1.0, "sparse": 0.5}
        response = await calls.ranking.Rerank(
            ranking_pb2.RerankRequest(
                query="w1", documents=FEW, method=5, weights=ranking_pb2.HybridWeights(dense=1, sparse=0.5)
            )
        )
        found = await in_thread(client, "rerank", "w1", FEW, method="hybrid", weights=weights)
        near([each.score for each in found], [each.score for each in response.results], 1e-5)
        best = await calls.ranking.Rerank(
            ranking_pb2.RerankRequest(query="w1 w2", documents=FEW, method=2, explain=True, top_n=1)
        )
        told = await in_thread(client, "rerank", "w1 w2", FEW, method="late_interaction", explain=True, top_n=1)
        tokens = [[each.document_token for each in side[0].explanation] for side in (told, best.results)]
        assert tokens[0] == tokens[1]


async def test_errors_name_the_field(tiny: Stack) -> None:
    """By its place in all texts, with the service's words."""
    long = [*TEXTS[:700], " ".join(f"w{each}" for each in range(1100)), *TEXTS[:100]]
    with Client(tiny.frontends[0].address) as client:
        with pytest.raises(errors.InputTooLong, match=r"texts\[700\] has 1343 tokens") as raised:
            await in_thread(client, "embed", long)
        assert (raised.value.reason, raised.value.field) == ("INPUT_TOO_LONG", "texts[700]")
        found = await in_thread(client, "embed", long, output=["dense"], truncate=True)
        assert np.flatnonzero(found.truncated).tolist() == [700]
        with pytest.raises((errors.DeadlineExceeded, errors.Overloaded)):  # the latter where it is told beforehand
            await in_thread(client, "embed", TEXTS * 20, timeout=0.05)


async def test_streams(bge: Stack) -> None:
    """The rows of Embed, in the order of the texts."""
    with Client(bge.frontends[0].address) as client:
        for output in ("dense", "sparse"):
            whole = await in_thread(client, "embed", FEW, output=output)
            streamed = await in_thread(client, "embed_stream", iter(FEW), output=output, batch_size=7)
            for ours, theirs in zip(streamed, whole, strict=True):
                if output == "sparse":
                    assert list(ours) == list(theirs)
                else:
                    near(ours, theirs, 1e-6)


async def test_other_ports_of_a_pair_are_told(tiny: Stack) -> None:
    """Those that a first user finds beside the right one: a frontend's for HTTP, and a worker's."""
    told = []
    for address in (tiny.frontends[0].http_address, tiny.worker.address):
        with Client(address, retries=0) as client, pytest.raises(errors.SelvageError) as raised:
            await in_thread(client, "embed", "a")
        told.append(str(raised.value).partition(";")[0])
    assert told == ["what answers there is not gRPC but perhaps HTTP", "the service there has no such method"]

"""The door http with real processes: what it gives equals what gRPC gives."""

import base64
from typing import Any

import aiohttp
import numpy as np
import pytest

from harness.stack import Stack
from selvage.v1 import classification_pb2, embedding_pb2, model_pb2, ranking_pb2
from shared.vectors import OutputKind
from support.references import Calls, dense, near

TEXTS = ["a small cat", "an even smaller dog", "the moon"]


class Http:
    """A frontend's door http."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url, self.session = url, session

    async def ask(self, path: str, body: Any = None) -> Any:
        """What comes back, of a call that must succeed."""
        method = "GET" if body is None else "POST"
        async with self.session.request(method, self.url + path, json=body) as reply:
            assert reply.status == 200, await reply.text()
            return await reply.json()


@pytest.fixture
def http(bge: Stack, session: aiohttp.ClientSession) -> Http:
    return Http(bge.frontends[0].http_url, session)


async def embedded(running: Stack, kind: str, **options: Any) -> embedding_pb2.EmbedResponse:
    """By gRPC."""
    asked = embedding_pb2.EmbedRequest(texts=TEXTS, outputs=[OutputKind[kind]], **options)  # type: ignore[list-item]
    return await Calls(running.channel).embedding.Embed(asked)


async def tokenized(running: Stack) -> list[list[int]]:
    reply = await Calls(running.channel).model.Tokenize(model_pb2.TokenizeRequest(texts=TEXTS))
    return [list(each.ids) for each in reply.texts]


async def test_dense_vectors_equal_those_of_grpc(bge: Stack, http: Http) -> None:
    """Bit for bit, by every path that has them; ids too, and rows as the model gives them."""
    told = await embedded(bge, "DENSE")
    rows = dense(told)
    openai = await http.ask("/v1/embeddings", {"input": TEXTS, "model": told.model})
    raw = await http.ask("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"})
    cohere = await http.ask("/v2/embed", {"texts": TEXTS, "model": told.model, "input_type": "search_document"})
    by_ids = await http.ask("/v1/embeddings", {"input": await tokenized(bge)})
    given = [
        [each["embedding"] for each in openai["data"]],
        await http.ask("/embed", {"inputs": TEXTS}),
        await http.ask("/", {"inputs": TEXTS}),
        cohere["embeddings"]["float"],
        [each["data"] for each in (await http.ask("/pooling", {"input": TEXTS, "task": "embed"}))["data"]],
        [each["embedding"] for each in by_ids["data"]],
    ]
    for each in given:
        assert (np.array(each, dtype=np.float32) == rows).all()
    assert b"".join(base64.b64decode(each["embedding"]) for each in raw["data"]) == told.dense.data
    assert openai["usage"]["total_tokens"] == told.usage.prompt_tokens
    plain = dense(await embedded(bge, "DENSE", normalize=False))
    for path, field in (("/v1/embeddings", "embedding"), ("/pooling", "data")):
        raw = (await http.ask(path, {"input": TEXTS, "use_activation": False}))["data"]
        assert (np.array([each[field] for each in raw], dtype=np.float32) == plain).all()


async def test_token_vectors_equal_those_of_grpc(bge: Stack, http: Http) -> None:
    """As numbers and as bytes, with their ids; /embed_all gives them as they are, not of unit length."""
    told = (await embedded(bge, "MULTI_VECTOR", return_token_ids=True)).multi_vector
    raw = (await embedded(bge, "MULTI_VECTOR", normalize=False)).multi_vector
    numbers = (await http.ask("/v1/multi-vector", {"input": TEXTS, "return_token_ids": True}))["data"]
    packed = (await http.ask("/v1/multi-vector", {"input": TEXTS, "encoding_format": "base64"}))["data"]
    pooled = (await http.ask("/pooling", {"input": TEXTS, "task": "token_embed"}))["data"]
    assert [each["shape"] for each in packed] == [[length, told.dimensions] for length in told.lengths]
    assert b"".join(base64.b64decode(each["embeddings"]) for each in packed) == told.data
    assert [number for each in numbers for number in each["token_ids"]] == list(told.token_ids)
    for kind in ([each["embeddings"] for each in numbers], [each["data"] for each in pooled]):
        assert np.concatenate([np.array(each, dtype=np.float32) for each in kind]).tobytes() == told.data
    every = await http.ask("/embed_all", {"inputs": TEXTS})
    assert np.concatenate([np.array(each, dtype=np.float32) for each in every]).tobytes() == raw.data


async def test_sparse_vectors_equal_those_of_grpc(bge: Stack, http: Http) -> None:
    told = (await embedded(bge, "SPARSE")).sparse
    found = await http.ask("/embed_sparse", {"inputs": TEXTS})
    assert [len(each) for each in found] == list(told.lengths)
    assert [pair["index"] for each in found for pair in each] == list(told.indices)
    assert [np.float32(pair["value"]) for each in found for pair in each] == list(map(np.float32, told.values))


async def test_reranks_equal_those_of_grpc(bge: Stack, http: Http) -> None:
    """In Cohere's words and in those of text-embeddings-inference; /score in the order of the request."""
    told = await Calls(bge.channel).ranking.Rerank(ranking_pb2.RerankRequest(query="a dog", documents=TEXTS))
    ranking = [(each.index, np.float32(each.score)) for each in told.results]
    body = {"query": "a dog", "documents": [TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]]}
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        results = (await http.ask(path, body | {"return_documents": True}))["results"]
        assert [(each["index"], np.float32(each["relevance_score"])) for each in results] == ranking
        assert [each["document"]["text"] for each in results] == [TEXTS[index] for index, _ in ranking]
    ranks = await http.ask("/rerank", {"query": "a dog", "texts": TEXTS})
    assert [(each["index"], np.float32(each["score"])) for each in ranks] == ranking
    scores = (await http.ask("/score", {"text_1": "a dog", "text_2": TEXTS}))["data"]
    assert {each["index"]: np.float32(each["score"]) for each in scores} == dict(ranking)


async def test_what_else_is_told(bge: Stack, http: Http) -> None:
    """Models, cosines, tokens and texts of ids, and figures."""
    (model,) = (await http.ask("/v1/models"))["data"]
    assert await http.ask(f"/v1/models/{model['id']}") == model
    assert (await http.ask("/info"))["model_id"] == model["id"]
    rows = dense(await embedded(bge, "DENSE"))
    cosines = await http.ask("/similarity", {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}})
    assert np.allclose(cosines, rows[1:] @ rows[0], atol=1e-6)
    ids = await tokenized(bge)
    shown = await http.ask("/tokenize", {"inputs": TEXTS})
    assert [[token["id"] for token in each] for each in shown] == ids
    assert len(await http.ask("/decode", {"ids": ids})) == 3
    async with http.session.get(f"{http.url}/metrics") as reply:
        page = await reply.text()
    assert 'selvage_http_requests_total{route="POST /similarity",status="200"}' in page


async def test_labels_equal_those_of_grpc(classifier: Stack, session: aiohttp.ClientSession) -> None:
    http = Http(classifier.frontends[0].http_url, session)
    asked = classification_pb2.ClassifyRequest(texts=TEXTS, normalize=True)
    told = await Calls(classifier.channel).classification.Classify(asked)
    scores = np.array(told.scores, dtype=np.float32).reshape(len(TEXTS), -1)
    found = (await http.ask("/classify", {"input": TEXTS}))["data"]
    assert (np.array([each["probs"] for each in found], dtype=np.float32) == scores).all()
    assert [each["label"] for each in found] == [told.labels[each.argmax()] for each in scores]
    predicted = await http.ask("/predict", {"inputs": [[text] for text in TEXTS]})
    assert [each[0]["label"] for each in predicted] == [each["label"] for each in found]
    alone = await http.ask("/predict", {"inputs": TEXTS[0]})
    assert [each["label"] for each in alone] == [each["label"] for each in predicted[0]]
    near([each["score"] for each in alone], [each["score"] for each in predicted[0]], 1e-6)

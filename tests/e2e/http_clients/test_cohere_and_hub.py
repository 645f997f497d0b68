"""Cohere's client and the hub's, as released, in a venv of their own, against real processes."""

from typing import Any

import numpy as np
import pytest

from harness.stack import Stack
from selvage.v1.classification_pb2 import ClassifyRequest
from selvage.v1.embedding_pb2 import EmbedRequest
from selvage.v1.ranking_pb2 import RerankRequest
from shared.vectors import DataType, InputType
from support.http_calls import BOTH, DOCUMENTS, MODEL, QUERY, TEXTS, decoded, same_bits
from support.programs import Program
from support.references import Calls, near


async def test_cohere_gets_the_vectors_of_embed(clients: Program, tiny: Stack, url: str, expected: Any) -> None:
    """In every type at once, after the prompt that belongs to the texts."""
    types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    asked = {"model": MODEL, "texts": TEXTS, "embedding_types": types, "output_dimension": 16}
    told = await clients.ask("cohere_embed", url, input_type="search_query", **asked)
    same: dict[str, Any] = {"texts": TEXTS, "dimensions": 16, "normalize": True, "input_type": InputType.QUERY}
    rows = await expected(**same)
    small, bits = [
        (await Calls(tiny.channel).embedding.Embed(EmbedRequest(**same, data_type=kind))).dense.data
        for kind in (DataType.INT8, DataType.BINARY)
    ]
    for way in BOTH:
        near(np.array(told[way]["float"]), rows, 1e-6)
        same_bits(decoded(told[way]["base64"]), rows)
        assert np.array(told[way]["int8"], dtype=np.int8).tobytes() == small
        assert np.array_equal(np.array(told[way]["uint8"]) - 128, told[way]["int8"])
        assert np.array(told[way]["ubinary"], dtype=np.uint8).tobytes() == bits
        assert np.array_equal(np.array(told[way]["binary"]) + 128, told[way]["ubinary"])
    assert told["texts"] == TEXTS
    assert told["tokens"] > len(TEXTS)


async def test_cohere_sends_texts_as_inputs(clients: Program, url: str, expected: Any) -> None:
    """As its client does beside images, of which there is no model."""
    asked = {"model": MODEL, "input_type": "search_document"}
    inputs = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
    told = await clients.ask("cohere_embed", url, inputs=inputs, **asked)
    rows = await expected(texts=TEXTS, normalize=True, input_type=InputType.DOCUMENT)
    near(np.array(told["plain"]["float"]), rows, 1e-6)
    assert told["texts"] == TEXTS
    picture = {"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}
    told = await clients.ask("cohere_embed", url, inputs=[picture], **asked)
    assert told["error"] == "cohere.BadRequestError", told


async def test_coheres_first_client_gets_lists_or_types(clients: Program, url: str, expected: Any) -> None:
    """It reads `response_type`, and makes an object of its own of each."""
    told = await clients.ask("cohere_embed_first", url, model=MODEL, texts=TEXTS, input_type="search_document")
    rows = await expected(texts=TEXTS, normalize=True, input_type=InputType.DOCUMENT)
    assert told["kinds"] == ["embeddings_floats", "embeddings_by_type"]
    near(np.array(told["plain"]), rows, 1e-6)
    near(np.array(told["typed"]["float"]), rows, 1e-6)
    assert np.array_equal(np.array(told["typed"]["ubinary"]), np.packbits(rows >= 0, axis=1))
    assert told["texts"] == TEXTS


async def test_cohere_gets_the_order_of_rerank(clients: Program, tiny: Stack, cross: Stack) -> None:
    """Of a model of vectors and of a reranker: all documents and the best ones, by both versions of its API."""
    for running, model in ((tiny, MODEL), (cross, "tiny-cross-encoder")):
        asked = RerankRequest(query=QUERY, documents=DOCUMENTS, normalize=True)
        ranked = (await Calls(running.channel).ranking.Rerank(asked)).results
        order, scores = [each.index for each in ranked], [each.score for each in ranked]
        for most, top in ((len(DOCUMENTS), {}), (2, {"top_n": 2})):
            asking = {"model": model, "query": QUERY, "documents": DOCUMENTS, **top}
            told = await clients.ask("cohere_rerank", running.frontends[0].http_url, **asking)
            for way in (*BOTH, "first"):
                assert [index for index, _ in told[way]] == order[:most]
                near(np.array([score for _, score in told[way]]), scores[:most], 1e-6)


@pytest.mark.parametrize(
    ("does", "asked", "error"),
    [
        ("cohere_embed", {"model": "another", "texts": ["w1"]}, "cohere.NotFoundError"),
        ("cohere_embed", {"model": MODEL, "texts": ["w1 " * 1000], "truncate": "NONE"}, "cohere.BadRequestError"),
        ("cohere_rerank", {"model": MODEL, "query": "w1", "documents": []}, "cohere.BadRequestError"),
    ],
)
async def test_cohere_raises_its_own_errors(
    clients: Program, url: str, does: str, asked: dict[str, Any], error: str
) -> None:
    defaults = {"input_type": "search_document"} if does == "cohere_embed" else {}
    told = await clients.ask(does, url, **(defaults | asked))
    assert told["error"] == error, told
    assert set(told["body"]) == {"message"}


@pytest.mark.parametrize("path", ["", "/embed"])
async def test_the_hub_gets_the_vectors_of_embed(clients: Program, url: str, expected: Any, path: str) -> None:
    """feature_extraction with all of its options; an endpoint is asked at its root."""
    told = await clients.ask("hub_features", url + path, text=TEXTS)
    for way in BOTH:
        near(np.array(told[way]), await expected(texts=TEXTS, normalize=True), 1e-6)
    options = {"truncate": True, "truncation_direction": "left", "dimensions": 16, "normalize": True}
    told = await clients.ask("hub_features", url + path, text="w1 " * 700 + "w2", prompt_name="query", **options)
    cut = {"truncate": True, "truncation_side": 2, "dimensions": 16, "normalize": True, "prompt_name": "query"}
    near(np.array(told["plain"]), await expected(texts=["w1 " * 700 + "w2"], **cut), 1e-6)


async def test_the_hub_compares_sentences(clients: Program, url: str, expected: Any) -> None:
    """At the root and at the path."""
    rows = await expected(texts=[QUERY, *DOCUMENTS], normalize=True)
    for path in ("", "/similarity"):
        told = await clients.ask("hub_similarity", url + path, sentence=QUERY, others=DOCUMENTS)
        near(np.array(told["plain"]), rows[1:] @ rows[0], 1e-6)


async def test_the_hub_gets_the_labels_of_classify(clients: Program, classifier: Stack) -> None:
    """Best first, at the root and at the path; of one text it wants a list in a list."""
    answer = await Calls(classifier.channel).classification.Classify(ClassifyRequest(texts=["w1"], normalize=True))
    best = sorted(zip(answer.scores, answer.labels, strict=True), reverse=True)
    for path, options in (("", {}), ("/predict", {}), ("", {"top_k": 2})):
        told = await clients.ask("hub_labels", classifier.frontends[0].http_url + path, text="w1", **options)
        wanted = best[: options.get("top_k")]
        assert [each["label"] for each in told["plain"]] == [label for _, label in wanted]
        near(np.array([each["score"] for each in told["plain"]]), [score for score, _ in wanted], 1e-6)


async def test_the_hub_looks_at_the_service_and_raises_its_own_error(clients: Program, url: str) -> None:
    told = await clients.ask("hub_endpoint", url)
    assert (told["healthy"], told["info"]["model_id"]) == (True, MODEL)
    told = await clients.ask("hub_features", url, text=["w1", ""])
    assert (told["error"], told["status"]) == ("huggingface_hub.HfHubHTTPError", 422)
    assert "inputs[1] is empty" in told["text"]

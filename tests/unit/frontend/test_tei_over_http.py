"""text-embeddings-inference's paths over HTTP: which model is meant."""

from typing import Any

import pytest
from asgi import HttpApi, Worker
from http_fields.vllm import CROSS_ENCODER

from frontend_service.workers.interface import ServedModel
from shared.errors import UnknownModel
from shared.vectors import OutputKind

ASKS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("/", {"inputs": "a"}, {}),
    ("/", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}, {}),
    ("/embed", {"inputs": "a"}, {}),
    ("/predict", {"inputs": ["a", "b"]}, CROSS_ENCODER),
    ("/rerank", {"query": "a", "texts": ["b"]}, CROSS_ENCODER),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}, {}),
    ("/tokenize", {"inputs": "a"}, {}),
    ("/decode", {"ids": [4]}, {}),
)


class Two(Worker):
    """Serves a model beside `fake`, so that one must be named."""

    def model(self, name: str) -> ServedModel:
        if name != "fake":
            raise UnknownModel("there are several models, name one: fake, other", field="model")
        return self.served


@pytest.mark.parametrize(("path", "body", "changes"), ASKS)
async def test_any_name_means_the_only_model(path: str, body: dict[str, Any], changes: dict[str, Any]) -> None:
    """The original serves one, and knows no such field."""
    ask = HttpApi(Worker(**changes)).ask
    for name in ("text-embeddings-inference", "", None):
        told = await ask(path, body | {"model": name})
        assert told.status == 200, told.body


@pytest.mark.parametrize(("path", "body", "changes"), ASKS)
async def test_where_there_are_several_the_name_counts(
    path: str, body: dict[str, Any], changes: dict[str, Any]
) -> None:
    """Vectors of one must not pass for another's."""
    ask = HttpApi(Two(**changes)).ask
    assert (await ask(path, body | {"model": "fake"})).status == 200
    told = await ask(path, body | {"model": "any"})
    assert (told.status, "name one" in told.json["error"]) == (404, True)


async def test_documents_at_rerank_are_coheres_and_name_their_model() -> None:
    """vLLM and Cohere know the field."""
    body = {"query": "a", "documents": ["b"], "model": "other"}
    assert (await HttpApi(Worker(**CROSS_ENCODER)).ask("/rerank", body)).status == 404


@pytest.mark.parametrize("top_k", [1, 1.0, 2**64])
async def test_no_more_labels_are_told_than_are_asked_for(top_k: float) -> None:
    """A bound, which may be above what there is."""
    body = {"inputs": "a", "parameters": {"top_k": top_k}}
    told = await HttpApi(Worker(**CROSS_ENCODER)).ask("/predict", body)
    assert [len(labels) for labels in told.json] == [1]


@pytest.mark.parametrize("path", ["/embed", "/embed_all", "/embed_sparse", "/tokenize"])
async def test_the_kind_of_texts_may_be_said(path: str) -> None:
    """A field of ours: the original has prompts alone, and a Router's queries have a way of their own."""
    outputs = (OutputKind.DENSE, OutputKind.SPARSE, OutputKind.MULTI_VECTOR)
    worker = Worker(prompts={"query": "b b "}, outputs=outputs)
    ask = HttpApi(worker).ask
    lengths = []
    for more in ({}, {"input_type": "query"}):
        told = await ask(path, {"inputs": "a", **more})
        lengths.append(worker.jobs[-1].tokens.total if path != "/tokenize" else len(told.json[0]))
    assert lengths[1] == lengths[0] + 2
    told = await ask(path, {"inputs": "a", "input_type": "poem"})
    assert (told.status, "input_type is 'poem'" in told.json["error"]) == (422, True)

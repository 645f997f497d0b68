"""Cohere's embed over HTTP, version 1 and 2: replies, absence, bounds, and names in errors."""

from typing import Any

import pytest
from asgi import HttpApi, Worker
from http_fields.vllm import LONG

ROW = [3.1] * 8


def inputs(*texts: str) -> list[dict[str, Any]]:
    return [{"content": [{"type": "text", "text": text}]} for text in texts]


async def test_version_1_gives_plain_lists() -> None:
    """`response_type` says whether types were asked for."""
    ask = HttpApi(Worker()).ask
    plain = (await ask("/v1/embed", {"texts": ["a"], "embedding_types": None})).json
    assert (plain["response_type"], plain["embeddings"], plain["texts"]) == ("embeddings_floats", [ROW], ["a"])
    assert plain["meta"]["api_version"] == {"version": "1"}
    typed = (await ask("/v1/embed", {"texts": ["a"], "embedding_types": ["float", "ubinary"]})).json
    assert typed["response_type"] == "embeddings_by_type"
    assert typed["embeddings"] == {"float": [ROW], "ubinary": [[255]]}


async def test_version_2_gives_types_always() -> None:
    """Floats where none is asked for."""
    told = (await HttpApi(Worker()).ask("/v2/embed", {"texts": ["a"]})).json
    assert (told["response_type"], told["embeddings"]) == ("embeddings_by_type", {"float": [ROW]})
    assert told["meta"]["api_version"] == {"version": "2"}


@pytest.mark.parametrize("path", ["/v1/embed", "/v2/embed"])
async def test_null_is_absence(path: str) -> None:
    """Every field that clients may leave out may be null."""
    fields = ("inputs", "images", "model", "input_type", "embedding_types", "truncate", "max_tokens", "priority")
    body = {"texts": ["a"]} | dict.fromkeys((*fields, "output_dimension"))
    assert (await HttpApi(Worker()).ask(path, body)).status == 200
    body = {"texts": None, "inputs": inputs("a"), "images": []}
    assert (await HttpApi(Worker()).ask(path, body)).status == 200


async def test_max_tokens_is_a_bound() -> None:
    """Above the model's limit it says nothing, below it texts are cut, at the end that `truncate` names."""
    worker = Worker()
    ask = HttpApi(worker).ask
    for max_tokens in (2**64, 4096, 4):
        assert (await ask("/v2/embed", {"texts": [LONG, "a"], "max_tokens": max_tokens})).status == 200
    assert [job.tokens.lengths for job in worker.jobs] == [(10, 3), (10, 3), (4, 3)]

"""A model whose documents are images (ColQwen2): queries are read, and whatever needs another text is refused."""

from typing import Any

import pytest
from asgi import HttpApi, Worker
from fakes import words_of

from shared.vectors import OutputKind, Task

WHY = "documents of this model are images, which are not served: only queries are, by input_type query"
CARD: dict[str, Any] = {
    "outputs": (OutputKind.MULTI_VECTOR,),
    "methods": (),
    "default_method": None,
    "tasks": (Task.EMBED,),
    "dimensions": 0,
    "message_templates": {"query": "query : {text} passage"},
}


async def test_queries_are_read_behind_their_prefix() -> None:
    worker = Worker(**CARD)
    reply = await HttpApi(worker).ask("/v1/multi-vector", {"input": "a b", "input_type": "query"})
    assert reply.status == 200, reply.body
    assert words_of(worker.jobs[0].tokens) == ["[CLS] query : a b passage [SEP]"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/multi-vector", {"input": "a", "input_type": "document"}),
        ("/v1/multi-vector", {"input": "a"}),
        ("/v1/multi-vector", {"input": [5, 6]}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/score", {"text_1": "a", "text_2": "b"}),
        ("/embed_all", {"inputs": "a"}),
        ("/tokenize", {"inputs": "a"}),
    ],
)
async def test_texts_that_are_no_queries_are_refused(path: str, body: dict[str, Any]) -> None:
    worker = Worker(**CARD)
    reply = await HttpApi(worker).ask(path, body)
    assert reply.status in (400, 422, 424), reply.body
    assert (WHY in reply.error[1], worker.jobs) == (True, [])


async def test_images_are_refused_by_name() -> None:
    """As of any model."""
    worker = Worker(**CARD)
    body = {"input": [{"image": "data:image/png;base64,AAAA"}], "input_type": "document"}
    reply = await HttpApi(worker).ask("/v1/multi-vector", body)
    assert (reply.status, worker.jobs) == (400, [])
    assert "input[0].image is refused: only texts are read" in reply.error[1]

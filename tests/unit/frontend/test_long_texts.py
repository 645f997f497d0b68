"""Texts over --max-text-bytes are refused by every API, whether or not they may be cut."""

from typing import Any

import pytest
from asgi import HttpApi, Worker
from test_auto_truncate import CROSS, EVERYTHING

from frontend_service.domain.limits import Limits

LONG = "a b c d e f g h i j k l " * 20
SMALL = Limits(text_bytes=48)


@pytest.mark.parametrize(
    ("path", "body", "card", "told"),
    [
        ("/v1/embeddings", {"input": ["a", "x" * 99], "truncate": True}, EVERYTHING, "has 99 bytes"),
        ("/v2/embed", {"texts": [LONG]}, EVERYTHING, "has 480 bytes"),
        ("/v1/rerank", {"query": "a", "documents": ["b", {"text": LONG}]}, EVERYTHING, "has 480 bytes"),
        ("/rerank", {"query": "a", "texts": [LONG], "truncate": True}, CROSS, "has 480 bytes"),
        ("/v1/embeddings", {"input": LONG, "truncate": False}, EVERYTHING, "has 480 bytes"),
        ("/tokenize", {"inputs": LONG}, EVERYTHING, "has 480 bytes"),
        ("/v1/rerank", {"query": LONG, "documents": ["a"]}, CROSS, "has 480 bytes"),
    ],
)
async def test_a_long_text_is_refused_with_the_limit(path: str, body: Any, card: dict[str, Any], told: str) -> None:
    worker = Worker(**card)
    reply = await HttpApi(worker, limits=SMALL).ask(path, body)
    error = reply.json.get("error", reply.json)
    message = error if isinstance(error, str) else error.get("message", "")
    assert told in message
    assert "--max-text-bytes" in message
    assert worker.jobs == []

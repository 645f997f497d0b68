"""Texts over --max-text-bytes that may be cut: read as far as that, by every API, or refused with the reason."""

from typing import Any

import pytest
from asgi import HttpApi, Worker
from listwise_fakes import Blocks
from test_auto_truncate import CROSS, EVERYTHING

from frontend_service.domain.limits import Limits

LONG = "a b c d e f g h i j k l " * 20
"""480 bytes, of which a limit of 10 tokens needs some twenty."""
SMALL = Limits(text_bytes=48)
PATHS: list[Any] = [
    ("/v1/embeddings", {"input": ["a", LONG], "truncate": True}, EVERYTHING),
    ("/v1/embeddings", {"input": ["a", LONG], "truncate": "START"}, EVERYTHING),
    ("/v1/embeddings", {"input": LONG, "truncation": True, "truncate_prompt_tokens": 4}, EVERYTHING),
    ("/v2/embed", {"texts": [LONG]}, EVERYTHING),
    ("/embed", {"inputs": LONG, "truncate": True}, EVERYTHING),
    ("/classify", {"input": [LONG], "truncate_prompt_tokens": -1}, EVERYTHING),
    ("/v1/rerank", {"query": LONG, "documents": ["a", LONG]}, EVERYTHING),
    ("/v1/rerank", {"query": "a", "documents": ["a", LONG]}, CROSS),
    ("/v1/rerank", {"query": "a", "documents": ["a", LONG], "max_tokens_per_doc": 3}, CROSS),
    ("/rerank", {"query": "a", "texts": ["a", LONG], "truncate": True}, CROSS),
]


@pytest.mark.parametrize(("path", "body", "card"), PATHS)
async def test_a_long_text_is_cut_as_if_all_of_it_were_read(path: str, body: Any, card: dict[str, Any]) -> None:
    workers = [Worker(**card) for _ in range(2)]
    replies = [
        await HttpApi(worker, limits=limits).ask(path, body)
        for worker, limits in zip(workers, (SMALL, Limits()), strict=True)
    ]
    assert [reply.status for reply in replies] == [200, 200], replies[0].body
    jobs = [[(job.tokens, job.second_segments, job.work) for job in worker.jobs] for worker in workers]
    assert jobs[0] == jobs[1]


@pytest.mark.parametrize(
    ("path", "body", "card", "told"),
    [
        ("/v1/embeddings", {"input": ["a", "x" * 99], "truncate": True}, EVERYTHING, "has more bytes"),
        ("/v1/embeddings", {"input": "a" + 99 * " ", "truncate": True}, EVERYTHING, "has more bytes"),
        ("/v2/embed", {"texts": ["xyz" * 9 + " " + "y" * 20 + " " + LONG]}, EVERYTHING, "has more bytes"),
        (
            "/v1/rerank",
            {"query": "a", "documents": ["b", {"text": "," * 99}]},
            EVERYTHING,
            "has more",
        ),
        ("/rerank", {"query": "a", "texts": ["," * 99], "truncate": True}, CROSS, "has more bytes"),
        ("/v1/embeddings", {"input": ["a", LONG]}, EVERYTHING, "has 480 bytes, the limit is 48 (--max-text-"),
        ("/v1/embeddings", {"input": LONG, "truncate": False}, EVERYTHING, "has 480 bytes, the limit is 48 (--"),
        ("/tokenize", {"inputs": LONG}, EVERYTHING, "has 480 bytes, the limit is 48 (--max-text-bytes)"),
        ("/v1/rerank", {"query": LONG, "documents": ["a"]}, CROSS, "has 480 bytes, the limit is 48 (--max-text-"),
        (
            "/v1/rerank",
            {"query": "a", "documents": [LONG]},
            CROSS | {"pair_template": "{query} {document}"},
            "has 480 bytes, the limit is 48 (--max-text-bytes)",
        ),
    ],
)
async def test_a_long_text_that_cannot_be_cut_is_refused_with_the_reason(
    path: str, body: Any, card: dict[str, Any], told: str
) -> None:
    """A part of it within the limit does not show the tokens that stay, or the request does not let it be cut."""
    worker = Worker(**card)
    reply = await HttpApi(worker, limits=SMALL).ask(path, body)
    error = reply.json.get("error", reply.json)
    message = error if isinstance(error, str) else error.get("message", "")
    assert told in message
    assert "--max-text-bytes" in message
    assert worker.jobs == []


async def test_of_a_listwise_reranker_documents_are_cut() -> None:
    workers = [Blocks(), Blocks()]
    documents = ["words", "them the words " * 200]
    for worker, limits in zip(workers, (Limits(text_bytes=1000), Limits()), strict=True):
        reply = await HttpApi(worker, limits=limits).ask("/v1/rerank", {"query": "a", "documents": documents})
        assert reply.status == 200, reply.body
    assert workers[0].blocks == workers[1].blocks

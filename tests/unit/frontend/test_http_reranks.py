"""Reranks over HTTP in the shapes of Cohere, Jina, vLLM and NVIDIA: what is bounded, ignored and named."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from asgi import HttpApi, Worker
from http_fields.vllm import CLASSIFIER, CROSS_ENCODER, LONG

from frontend_service.workers.interface import ServedModel
from shared.jobs import Job, JobResult
from shared.vectors import Activation

RERANKS = ("/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking")
BOUNDS = ("max_tokens_per_doc", "max_tokens_per_query", "max_doc_length", "truncate_prompt_tokens")


async def lengths(path: str, **fields: Any) -> tuple[int, ...]:
    """Tokens of the pairs that the worker gets of a query of two words with documents of twelve and one."""
    worker = Worker(**CROSS_ENCODER)
    told = await HttpApi(worker).ask(path, {"query": "a b", "documents": [LONG, "c"]} | fields)
    assert told.status == 200, told.body
    return tuple(worker.jobs[0].tokens.lengths)


@pytest.mark.parametrize("path", RERANKS)
@pytest.mark.parametrize("bound", [*BOUNDS, "top_n", "max_chunks_per_doc"])
@pytest.mark.parametrize("most", [4096, 2**53 - 1, 2**64])
async def test_a_bound_above_the_limit_says_nothing(path: str, bound: str, most: int) -> None:
    """Haystack's CohereRanker always sends 4,096, of a model that takes 10; others the largest number they have."""
    assert await lengths(path, **{bound: most}) == await lengths(path) == (10, 6)


@pytest.mark.parametrize(("bound", "expected"), [*((name, 8) for name in BOUNDS if name != "max_tokens_per_query")])
async def test_a_bound_below_it_holds(bound: str, expected: int) -> None:
    """Documents of 3 tokens beside 2 of the query and 3 special ones, or pairs of 8."""
    value = expected if bound == "truncate_prompt_tokens" else 3
    assert (await lengths("/v1/rerank", **{bound: value}))[0] == expected


async def test_the_lower_one_of_two_bounds_holds() -> None:
    """One is Cohere's, the other Jina's; 0 is none, as vLLM has it."""
    assert (await lengths("/v1/rerank", max_tokens_per_doc=4, max_doc_length=2))[0] == 7
    assert (await lengths("/v1/rerank", max_tokens_per_doc=2, max_doc_length=4))[0] == 7
    assert (await lengths("/v1/rerank", max_tokens_per_doc=0, max_doc_length=4))[0] == 9


@pytest.mark.parametrize("path", RERANKS)
async def test_no_top_n_is_all(path: str) -> None:
    """0 as vLLM means it, and null; 2.0 is 2."""
    ask = HttpApi(Worker(**CROSS_ENCODER)).ask
    body = {"query": "a", "documents": ["b", "c", "d"], "model": None, "return_documents": None}
    assert [len((await ask(path, body | {"top_n": top_n})).json["results"]) for top_n in (0, None, 2.0)] == [3, 3, 2]


class Certain(Worker):
    """Logits of 20, 60, 60 and 40, of which a sigmoid in float32 makes 1."""

    async def run(self, model: ServedModel, job: Job) -> JobResult:
        result = await super().run(model, job)
        return replace(result, scores=(20 * np.frombuffer(result.scores, dtype="<f4")).tobytes())


DOCUMENTS = ["b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("path", "body", "results"),
    [
        *((path, {"query": "a", "documents": DOCUMENTS}, "results") for path in RERANKS),
        ("/rerank", {"query": "a", "texts": DOCUMENTS}, ""),
        ("/v1/ranking", {"query": {"text": "a"}, "passages": [{"text": text} for text in DOCUMENTS]}, "rankings"),
    ],
)
async def test_documents_of_one_score_come_in_the_order_of_their_logits(
    path: str, body: dict[str, Any], results: str
) -> None:
    """Of equal logits the request's order counts, and `top_n` cuts behind the best."""
    ask = HttpApi(Certain(**CROSS_ENCODER)).ask
    told = (await ask(path, body)).json
    assert [entry["index"] for entry in (told[results] if results else told)] == [1, 2, 3, 0]
    if results == "results":
        assert [entry["index"] for entry in (await ask(path, body | {"top_n": 2})).json[results]] == [1, 2]


@pytest.mark.parametrize("path", ["/predict", "/classify"])
async def test_the_best_label_of_one_score_is_that_of_the_largest_logit(path: str) -> None:
    """Of several labels with a sigmoid of their own."""
    card = CLASSIFIER | {"labels": ("w", "x", "y", "z"), "activation": Activation.SIGMOID}
    body = {"inputs": "a"} if path == "/predict" else {"input": "a"}
    told = (await HttpApi(Certain(**card)).ask(path, body)).json
    if path == "/predict":
        assert [(entry["label"], entry["score"]) for entry in told] == [("x", 1.0), ("y", 1.0), ("z", 1.0), ("w", 1.0)]
    else:
        assert told["data"][0]["label"] == "x"


async def test_use_activation_false_gives_logits() -> None:
    """The field counts at /rerank too, whose own word is raw_scores."""
    ask = HttpApi(Worker(**CROSS_ENCODER)).ask
    for path in RERANKS:
        told = await ask(path, {"query": "a", "documents": ["b"], "use_activation": False})
        assert told.json["results"] == [{"index": 0, "relevance_score": 1.0}]


async def test_the_other_end_is_cut_where_the_body_says_so() -> None:
    """The last words of the document stay."""
    ids = []
    for side in ("left", "right"):
        worker = Worker(**CROSS_ENCODER)
        body = {"query": "a", "documents": [LONG], "truncation_side": side}
        assert (await HttpApi(worker).ask("/v1/rerank", body)).status == 200
        ids.append(bytes(worker.jobs[0].tokens.ids))
    assert ids[0] != ids[1]


@pytest.mark.parametrize("top_n", [2, 2.0])
async def test_a_document_may_be_an_object(top_n: float) -> None:
    """An object comes back whole, as it was sent, whatever is mended beside it."""
    document = {"text": "b", "url": "https://example.org", "pages": 3, "price": 1.0, "author": None}
    body = {"query": "a", "documents": ["c", document], "return_documents": True, "top_n": top_n}
    told = await HttpApi(Worker(**CROSS_ENCODER)).ask("/v1/rerank", body)
    found = {result["index"]: result["document"] for result in told.json["results"]}
    assert found == {0: {"text": "c"}, 1: document}
    assert isinstance(found[1]["price"], float)


@pytest.mark.parametrize("document", ["", "b", "bc"])
@pytest.mark.parametrize("path", RERANKS)
async def test_one_document_may_be_a_text(path: str, document: str) -> None:
    """It comes back whole, the empty one too."""
    body = {"query": "a", "documents": document, "return_documents": True}
    told = await HttpApi(Worker(**CROSS_ENCODER)).ask(path, body)
    assert [result["document"] for result in told.json["results"]] == [{"text": document}]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rank_fields", ["text"]),
        ("priority", 0),
        ("return_embeddings", False),
        ("padding", "do_not_pad"),
        ("max_chunks_per_doc", 10),
        ("rank_fields", None),
    ],
)
async def test_what_asks_for_nothing_is_taken(field: str, value: object) -> None:
    """Clients send these defaults."""
    told = await HttpApi(Worker(**CROSS_ENCODER)).ask("/v1/rerank", {"query": "a", "documents": ["b"], field: value})
    assert told.status == 200


async def test_the_version_is_that_of_the_path() -> None:
    """Cohere's clients read it."""
    ask = HttpApi(Worker(**CROSS_ENCODER)).ask
    versions = [
        (await ask(path, {"query": "a", "documents": ["b"]})).json["meta"]["api_version"]["version"]
        for path in ("/v1/rerank", "/v2/rerank")
    ]
    assert versions == ["1", "2"]


async def test_rankings_as_nvidia_gives_them() -> None:
    """Logits, best first; the fake's are 1, 3, 3, 2."""
    body = {"model": "fake", "query": {"text": "a"}, "passages": [{"text": "b"}, {"text": "c"}, {"text": "d e"}]}
    told = await HttpApi(Worker(**CROSS_ENCODER)).ask("/v1/ranking", body)
    assert told.json == {
        "rankings": [{"index": 1, "logit": 3.0}, {"index": 2, "logit": 3.0}, {"index": 0, "logit": 1.0}],
        "usage": {"prompt_tokens": 16, "total_tokens": 16},
    }


async def test_a_passage_over_the_limit_is_refused_unless_its_end_may_go() -> None:
    """NIM's default is NONE."""
    body = {"query": {"text": "a"}, "passages": [{"text": "b"}, {"text": LONG}]}
    for truncate in ({}, {"truncate": None}, {"truncate": "NONE"}):
        told = await HttpApi(Worker(**CROSS_ENCODER)).ask("/v1/ranking", body | truncate)
        assert (told.status, told.json["error"]["param"]) == (400, "passages[1].text")
    worker = Worker(**CROSS_ENCODER)
    assert (await HttpApi(worker).ask("/v1/ranking", body | {"truncate": "END"})).status == 200
    assert worker.jobs[0].tokens.lengths == (5, 10)

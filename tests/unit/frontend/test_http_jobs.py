"""The dialects of HTTP: which job a request becomes, and what a reply makes of its result."""

import base64
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
from asgi import HttpApi, Worker, api_of
from fakes import WORDS, words_of
from http_fields.field import CLASSIFIER, CROSS_ENCODER, LONG

from frontend_service.domain.limits import ExpectedReply
from frontend_service.services.pipeline import ServedModel
from shared.errors import UnknownModel
from shared.jobs import Job, JobResult
from shared.vectors import InputType, OutputKind, ScoringMethod

EMBED = ("/v1/embeddings",)
VECTORS = ("/v1/embeddings", "/embeddings", "/pooling")
RERANKS = ("/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking")
LATE: dict[str, object] = {
    "outputs": (OutputKind.MULTI_VECTOR,),
    "methods": (ScoringMethod.LATE_INTERACTION,),
    "default_method": ScoringMethod.LATE_INTERACTION,
    "normalizes_multi_vectors": True,
}
EVERY_OUTPUT = {"outputs": (OutputKind.DENSE, OutputKind.SPARSE, OutputKind.MULTI_VECTOR)}
QUERY_PROMPT = {"prompts": {"query": "query : "}}
BOUNDS = ("max_tokens_per_doc", "max_tokens_per_query", "max_doc_length", "top_n", "max_chunks_per_doc")
LARGEST = (4096, 2**53 - 1, 2**64)
"""Bounds above the model's limit of 10: Haystack's CohereRanker always sends the first one."""
CUT_TO_THE_LIMIT = "[CLS] a b c d e f g h [SEP]"
IDS = [WORDS.index(word) for word in ("[CLS]", *LONG.split(), "[SEP]")]
ROW, TOKEN_ROWS = np.full(8, 3.1, dtype="<f4"), np.ones((3, 8), dtype="<f4")
NAMED = {"text": "b", "url": "https://example.org", "pages": 3, "price": 1.0, "author": None}
SCORES = {"text_1": "a", "text_2": ["b", "c"]}
RANKED = {"query": "a", "documents": ["b", "c", "d"]}
HARMLESS = {"rank_fields": ["text"], "priority": 0, "return_embeddings": False, "padding": "do_not_pad"}
"""Values of fields that are refused otherwise, which ask for nothing."""

Fields = dict[str, Any]
Case = tuple[tuple[str, ...], Fields, Fields, Fields]
"""Paths, a body, what differs in the card, and what is expected.

Expected are the `sequences` of the first job in words, other attributes of it, which begin with `job`, and places of
the reply (`*`: of each entry). The fake's logits are 1, 3, 3, 2.
"""


def in_base64(rows: Any) -> str:
    return base64.b64encode(rows).decode()


def becomes(paths: tuple[str, ...], body: Fields, *sequences: str, **card: Any) -> Case:
    return paths, body, card, {"sequences": list(sequences)}


def replies(paths: tuple[str, ...], body: Fields, place: str, content: Any, **card: Any) -> Case:
    return paths, body, card, {place: content}


CUTS: tuple[Case, ...] = (
    *(
        becomes(VECTORS, {"input": LONG, **fields}, sequence)
        for fields, sequence in (
            ({"truncate_prompt_tokens": 4}, "[CLS] a b [SEP]"),
            ({"truncate_prompt_tokens": 4.0}, "[CLS] a b [SEP]"),
            ({"truncate_prompt_tokens": 4, "truncation_side": "left"}, "[CLS] k l [SEP]"),
            ({"truncate_prompt_tokens": -1}, CUT_TO_THE_LIMIT),
            ({"truncate_prompt_tokens": 2**64}, CUT_TO_THE_LIMIT),
        )
    ),
    becomes(EMBED, {"input": LONG, "truncate": True}, CUT_TO_THE_LIMIT),
    becomes(EMBED, {"input": LONG, "truncate": "END"}, CUT_TO_THE_LIMIT),
    becomes(EMBED, {"input": LONG, "truncate": "START"}, "[CLS] e f g h i j k l [SEP]"),
    *(
        becomes(("/v2/embed", "/v1/embed"), {"texts": [LONG, "a"], "max_tokens": most}, sequence, "[CLS] a [SEP]")
        for most, sequence in ((2**64, CUT_TO_THE_LIMIT), (4096, CUT_TO_THE_LIMIT), (4, "[CLS] a b [SEP]"))
    ),
    becomes(
        ("/score",),
        {"queries": "a b c d", "items": ["e f g h", "i"], "truncate_prompt_tokens": 4, "max_tokens_per_query": 3},
        *("[CLS] a [SEP]", "[CLS] e f [SEP]", "[CLS] i [SEP]"),
    ),
    *(
        becomes(paths, {**texts, **fields}, pair, **CROSS_ENCODER)
        for paths, texts in (
            (RERANKS, {"query": "a b", "documents": ["c d e f g h i j k l"]}),
            (("/score",), {"queries": "a b", "documents": ["c d e f g h i j k l"]}),
        )
        for fields, pair in (
            ({"truncate_prompt_tokens": -1}, "[CLS] a b [SEP] c d e f g [SEP]"),
            ({"truncate_prompt_tokens": 7}, "[CLS] a b [SEP] c d [SEP]"),
            ({"truncate_prompt_tokens": 7, "truncation_side": "left"}, "[CLS] a b [SEP] k l [SEP]"),
            ({"truncate_prompt_tokens": 4096}, "[CLS] a b [SEP] c d e f g [SEP]"),
            ({"max_tokens_per_doc": 1, "max_tokens_per_query": 1}, "[CLS] a [SEP] c [SEP]"),
            ({"max_tokens_per_doc": 3, "truncate_prompt_tokens": 6}, "[CLS] a [SEP] c d [SEP]"),
        )
    ),
    *(
        becomes(RERANKS, {"query": "a b", "documents": [LONG], **bounds}, pair, **CROSS_ENCODER)
        for bounds, pair in (
            *((dict.fromkeys(BOUNDS, most), "[CLS] a b [SEP] a b c d e [SEP]") for most in LARGEST),
            ({"max_doc_length": 3}, "[CLS] a b [SEP] a b c [SEP]"),
            ({"max_tokens_per_doc": 4, "max_doc_length": 2}, "[CLS] a b [SEP] a b [SEP]"),
            ({"max_tokens_per_doc": 2, "max_doc_length": 4}, "[CLS] a b [SEP] a b [SEP]"),
            ({"max_tokens_per_doc": 0, "max_doc_length": 4}, "[CLS] a b [SEP] a b c d [SEP]"),
        )
    ),
    becomes(
        ("/v1/ranking",),
        {"query": {"text": "a"}, "passages": [{"text": "b"}, {"text": LONG}], "truncate": "END"},
        *("[CLS] a [SEP] b [SEP]", "[CLS] a [SEP] a b c d e f [SEP]"),
        **CROSS_ENCODER,
    ),
)
"""What bounds and sides make of texts; a bound above the model's limit says nothing."""
KINDS: tuple[Case, ...] = (
    becomes(EMBED, {"input": {"text": "a b"}}, "[CLS] a b [SEP]"),
    becomes(
        EMBED,
        {"input": ["a b", {"text": "c", "image": None}, "d"]},
        *("[CLS] a b [SEP]", "[CLS] c [SEP]", "[CLS] d [SEP]"),
    ),
    becomes(
        ("/pooling",), {"input": "a", "input_type": "query"}, "[CLS] query : a [SEP]", **CLASSIFIER, **QUERY_PROMPT
    ),
    becomes(
        ("/embed", "/embed_all", "/embed_sparse"),
        {"inputs": "a", "input_type": "query"},
        "[CLS] query : a [SEP]",
        **EVERY_OUTPUT,
        **QUERY_PROMPT,
    ),
    *(
        (EMBED, {"input": "a", **fields}, {}, {"job.work.input_type": side})
        for fields, side in (
            ({"task": "retrieval.query"}, InputType.QUERY),
            ({"task": "retrieval.passage"}, InputType.DOCUMENT),
            ({"task": "text-matching"}, InputType.UNSPECIFIED),
            ({"task": "clustering"}, InputType.UNSPECIFIED),
            ({"input_type": "passage"}, InputType.DOCUMENT),
            ({"input_type": "query", "task": "retrieval.query"}, InputType.QUERY),
        )
    ),
    *(
        (paths, body | fields, card, {"job.work.unit_rows": unit_rows})
        for paths, body in ((("/score",), SCORES), (("/v1/rerank",), RANKED))
        for card, fields, unit_rows in (
            (LATE, {}, True),
            (LATE, {"use_activation": False}, False),
            ({}, {"use_activation": False}, True),  # vLLM compares vectors by cosine, whatever length they have
        )
    ),
)
"""What a text is, and what is asked of it."""
REPLIES: tuple[Case, ...] = (
    (
        VECTORS[:2],
        {"input": ["a", "b c"]},
        {},
        {
            "object": "list",
            "model": "fake",
            "data.*.index": [0, 1],
            "data.0.embedding": [3.1] * 8,
            "usage": {"prompt_tokens": 7, "total_tokens": 7},
        },
    ),
    *(
        replies(EMBED, {"input": "a", **fields}, "data.0.embedding", content)
        for fields, content in (
            ({"encoding_format": "base64", "embedding_type": "float"}, in_base64(ROW)),  # as NVIDIA's clients
            ({"encoding_format": "float", "embedding_type": "base64"}, in_base64(ROW)),  # as openai's, asking Jina
            ({"embedding_type": "base64"}, in_base64(ROW)),
            ({"embedding_type": "float"}, [3.1] * 8),
            ({"encoding_format": "base64", "embedding_type": None}, in_base64(ROW)),
        )
    ),
    *(
        replies((path,), {"input": "a", "encoding_format": "base64", "embed_dtype": dtype}, place, in_base64(rows))
        for path, place in (("/v1/embeddings", "data.0.embedding"), ("/pooling", "data.0.data"))
        for dtype, rows in (("float32", ROW), ("float16", ROW.astype("<f2")), ("bfloat16", b"\x46\x40" * 8))
    ),
    replies(
        ("/pooling",),
        {"input": "a", "task": "token_embed", "encoding_format": "base64"},
        *("data.0.data", in_base64(TOKEN_ROWS)),
        **EVERY_OUTPUT,
    ),
    replies(("/classify",), {"input": "a", "use_activation": False}, "data.0.probs", [1.0, 3.0], **CLASSIFIER),
    replies(("/pooling",), {"input": "a", "use_activation": False}, "data.0.data", [1.0, 3.0], **CLASSIFIER),
    *(
        replies(RERANKS, RANKED | {"top_n": top_n}, "results.*.index", order, **CROSS_ENCODER)
        for top_n, order in ((0, [1, 2, 0]), (None, [1, 2, 0]), (9, [1, 2, 0]), (2, [1, 2]), (2.0, [1, 2]))
    ),
    (
        ("/reranking", "/v1/reranking"),
        {"query": "a", "texts": ["b", "c", "d"], "return_text": True, "top_n": 2},
        CROSS_ENCODER,
        {"*.index": [1, 2], "*.text": ["c", "d"]},
    ),
    replies(("/v1/rerank",), RANKED, "meta.api_version.version", "1", **CROSS_ENCODER),
    replies(("/v2/rerank",), RANKED, "meta.api_version.version", "2", **CROSS_ENCODER),
    replies(("/v1/embed",), {"texts": ["a"]}, "meta.api_version", {"version": "1"}),
    replies(("/v2/embed",), {"texts": ["a"]}, "meta.api_version", {"version": "2"}),
    *(
        replies(RERANKS, {"query": "a", "documents": sent, "return_documents": True}, *there, **CROSS_ENCODER)
        for sent, *there in (
            ("", "results.*.document", [{"text": ""}]),
            ("bc", "results.*.document", [{"text": "bc"}]),
            (["c", NAMED], "results.*.document", [NAMED, {"text": "c"}]),
        )
    ),
    replies(("/v1/rerank",), RANKED | HARMLESS, "results.*.index", [1, 2, 0], **CROSS_ENCODER),
    replies(
        ("/v1/ranking",),
        {"query": {"text": "a"}, "passages": [{"text": "b"}, {"text": "c"}, {"text": "d e"}]},
        "",
        {
            "rankings": [{"index": 1, "logit": 3.0}, {"index": 2, "logit": 3.0}, {"index": 0, "logit": 1.0}],
            "usage": {"prompt_tokens": 16, "total_tokens": 16},
        },
        **CROSS_ENCODER,
    ),
    replies(
        ("/v2/embed",),
        {"texts": None, "images": [], "inputs": [{"content": [{"type": "text", "text": "a"}]}]},
        *("texts", ["a"]),
    ),
    replies(
        ("/tokenize",),
        {"prompt": LONG},
        "",
        {"count": len(IDS), "max_model_len": 10, "tokens": IDS, "token_strs": None},
        **QUERY_PROMPT,
        default_prompt_name="query",
    ),
    replies(
        ("/tokenize",),
        {"inputs": "a", "input_type": "query"},
        *("0.*.text", ["[CLS]", "query", ":", "a", "[SEP]"]),
        **QUERY_PROMPT,
    ),
    *(
        replies(
            ("/predict",), {"inputs": "a", "parameters": {"top_k": top_k}}, "0.*.label", ["LABEL_0"], **CROSS_ENCODER
        )
        for top_k in (1, 1.0, 2**64)
    ),
)


def at(content: Any, place: str) -> Any:
    """What is at a place of a reply."""
    for number, step in enumerate(steps := place.split(".") if place else []):
        if step == "*":
            return [at(entry, ".".join(steps[number + 1 :])) for entry in content]
        content = content[int(step) if isinstance(content, list) else step]
    return content


@pytest.mark.parametrize(
    ("path", "body", "card", "expected"),
    [(path, *rest) for paths, *rest in (*CUTS, *KINDS, *REPLIES) for path in paths],
)
async def test_a_request_becomes_a_job_and_its_result_a_reply(
    path: str, body: Fields, card: Fields, expected: Fields
) -> None:
    api = api_of(**card)
    reply = await api.ask(path, body)
    assert reply.status == 200, reply.body
    for place, content in expected.items():
        if place == "sequences":
            assert words_of(api.worker.jobs[0].tokens) == content
        elif place.startswith("job."):
            assert attrgetter(place.removeprefix("job."))(api.worker.jobs[0]) == content
        else:
            assert at(reply.json, place) == content


async def test_the_name_of_a_reply() -> None:
    headers = (("content-type", "application/json"), ("x-request-id", "call"))
    named = await api_of().ask("/v1/embeddings", {"input": "a", "request_id": "mine"}, headers=headers)
    assert (named.json["id"], named.headers["x-request-id"]) == ("embd-mine", "call")
    assert (await api_of().ask("/v1/embeddings", {"input": "a"}, headers=headers)).json["id"] == "embd-call"


class Certain(Worker):
    """Logits of 20, 60, 60 and 40, of which a sigmoid in float32 makes 1."""

    async def run(self, model: ServedModel, job: Job, expected: ExpectedReply) -> JobResult:
        result = await super().run(model, job, expected)
        return replace(result, scores=(20 * np.frombuffer(result.scores, dtype="<f4")).tobytes())


async def test_equal_scores_are_ranked_by_their_logits() -> None:
    """Of equal logits the request's order counts, and `top_n` cuts behind the best; so are labels ranked."""
    ask, texts = HttpApi(Certain(**CROSS_ENCODER)).ask, ["b", "c", "d", "e"]
    passages = [{"text": text} for text in texts]
    for path, body, place in (
        *((path, {"query": "a", "documents": texts}, "results.*.index") for path in RERANKS),
        ("/rerank", {"query": "a", "texts": texts}, "*.index"),
        ("/v1/ranking", {"query": {"text": "a"}, "passages": passages}, "rankings.*.index"),
    ):
        assert at((await ask(path, body)).json, place) == [1, 2, 3, 0], path
        if place == "results.*.index":
            assert at((await ask(path, body | {"top_n": 2})).json, place) == [1, 2], path
    ask = HttpApi(Certain(**CROSS_ENCODER | {"labels": ("w", "x", "y", "z")})).ask
    assert at((await ask("/predict", {"inputs": "a"})).json, "*.label") == ["x", "y", "z", "w"]
    assert at((await ask("/classify", {"input": "a"})).json, "data.*.label") == ["x"]


class Two(Worker):
    """Serves a model beside `fake`, so that one must be named."""

    def model(self, name: str) -> ServedModel:
        if name != "fake":
            raise UnknownModel("there are several models, name one: fake, other", field="model")
        return self.served


@pytest.mark.parametrize(
    ("path", "body", "changes"),
    [
        ("/", {"inputs": "a"}, {}),
        ("/", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}, {}),
        ("/embed", {"inputs": "a"}, {}),
        ("/predict", {"inputs": ["a", "b"]}, CROSS_ENCODER),
        ("/rerank", {"query": "a", "texts": ["b"]}, CROSS_ENCODER),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}, {}),
        ("/tokenize", {"inputs": "a"}, {}),
        ("/decode", {"ids": [4]}, {}),
    ],
)
async def test_on_teis_paths_any_name_means_the_only_model(path: str, body: Fields, changes: dict[str, Any]) -> None:
    """The original serves one, and knows no such field. Where there are several the name counts."""
    for name in ("text-embeddings-inference", "", None):
        assert (await api_of(**changes).ask(path, body | {"model": name})).status == 200
    two = HttpApi(Two(**changes))
    assert (await two.ask(path, body | {"model": "fake"})).status == 200
    reply = await two.ask(path, body | {"model": "any"})
    assert (reply.status, "name one" in reply.json["error"]) == (404, True)

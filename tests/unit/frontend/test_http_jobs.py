"""The dialects of HTTP: which job a request becomes, and what a reply makes of its result."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from asgi import HttpApi, Worker
from fakes import WORDS
from http_fields.vllm import CLASSIFIER, CROSS_ENCODER, LONG

from frontend_service.services.pipeline import ServedModel
from shared.errors import UnknownModel
from shared.jobs import Job, JobResult, Score
from shared.vectors import Activation, InputType, OutputKind, ScoringMethod

LATE: dict[str, object] = {
    "outputs": (OutputKind.MULTI_VECTOR,),
    "methods": (ScoringMethod.LATE_INTERACTION,),
    "default_method": ScoringMethod.LATE_INTERACTION,
    "normalizes_multi_vectors": True,
}
QUERY_PROMPT = {"prompts": {"query": "query : "}}
RERANKS = ("/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking")
VECTORS = ("/v1/embeddings", "/embeddings", "/pooling")
SIDES = (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items"))
LARGEST = (4096, 2**53 - 1, 2**64)
"""Bounds above the model's limit of 10: Haystack's CohereRanker always sends the first one."""
CUT_TO_THE_LIMIT = "[CLS] a b c d e f g h [SEP]"

Fields = dict[str, Any]


async def asked(path: str, body: object, **card: Any) -> tuple[Any, Any]:
    """The reply and the first job."""
    worker = Worker(**card)
    told = await HttpApi(worker).ask(path, body)
    assert told.status == 200, told.body
    return told.json, worker.jobs[0] if worker.jobs else None


def words(job: Any) -> list[str]:
    """Each sequence in the words of the vocabulary."""
    ids = np.frombuffer(job.tokens.ids, dtype="<i4")
    return [
        " ".join(WORDS[number] for number in ids[start:stop])
        for start, stop in zip(job.tokens.offsets, job.tokens.offsets[1:], strict=False)
    ]


JOBS: tuple[tuple[tuple[str, ...], Fields, dict[str, object], list[str]], ...] = (
    *(
        (VECTORS, {"input": LONG, **fields}, {}, [sequence])
        for fields, sequence in (
            ({"truncate_prompt_tokens": 4}, "[CLS] a b [SEP]"),
            ({"truncate_prompt_tokens": 4.0}, "[CLS] a b [SEP]"),
            ({"truncate_prompt_tokens": 4, "truncation_side": "left"}, "[CLS] k l [SEP]"),
            ({"truncate_prompt_tokens": 4, "truncation_side": "right"}, "[CLS] a b [SEP]"),
            ({"truncate_prompt_tokens": -1}, CUT_TO_THE_LIMIT),
            ({"truncate_prompt_tokens": 2**64}, CUT_TO_THE_LIMIT),
        )
    ),
    (("/v1/embeddings",), {"input": LONG, "truncate": True}, {}, [CUT_TO_THE_LIMIT]),
    (("/v1/embeddings",), {"input": LONG, "truncate": "END"}, {}, [CUT_TO_THE_LIMIT]),
    (("/v1/embeddings",), {"input": LONG, "truncate": "START"}, {}, ["[CLS] e f g h i j k l [SEP]"]),
    (("/v1/embeddings",), {"input": {"text": "a b"}}, {}, ["[CLS] a b [SEP]"]),
    (
        ("/v1/embeddings",),
        {"input": ["a b", {"text": "c", "image": None}, "d"]},
        {},
        ["[CLS] a b [SEP]", "[CLS] c [SEP]", "[CLS] d [SEP]"],
    ),
    (("/pooling",), {"input": "a", "input_type": "query"}, CLASSIFIER | QUERY_PROMPT, ["[CLS] query : a [SEP]"]),
    *(
        (("/v2/embed", "/v1/embed"), {"texts": [LONG, "a"], "max_tokens": most}, {}, [sequence, "[CLS] a [SEP]"])
        for most, sequence in ((2**64, CUT_TO_THE_LIMIT), (4096, CUT_TO_THE_LIMIT), (4, "[CLS] a b [SEP]"))
    ),
    *(
        (("/score",), {first: "a", second: ["b", "c"]}, {}, ["[CLS] a [SEP]", "[CLS] b [SEP]", "[CLS] c [SEP]"])
        for first, second in SIDES
    ),
    (
        ("/score",),
        {"queries": "a b c d", "items": ["e f g h", "i"], "truncate_prompt_tokens": 4, "max_tokens_per_query": 3},
        {},
        ["[CLS] a [SEP]", "[CLS] e f [SEP]", "[CLS] i [SEP]"],
    ),
    *(
        (paths, {**texts, **fields}, CROSS_ENCODER, [pair])
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
        (RERANKS, {"query": "a b", "documents": [LONG], **bounds}, CROSS_ENCODER, [pair])
        for bounds, pair in (
            *(
                ({name: most}, "[CLS] a b [SEP] a b c d e [SEP]")
                for most in LARGEST
                for name in (
                    "max_tokens_per_doc",
                    "max_tokens_per_query",
                    "max_doc_length",
                    "top_n",
                    "max_chunks_per_doc",
                )
            ),
            ({"max_doc_length": 3}, "[CLS] a b [SEP] a b c [SEP]"),
            ({"max_tokens_per_doc": 4, "max_doc_length": 2}, "[CLS] a b [SEP] a b [SEP]"),
            ({"max_tokens_per_doc": 2, "max_doc_length": 4}, "[CLS] a b [SEP] a b [SEP]"),
            ({"max_tokens_per_doc": 0, "max_doc_length": 4}, "[CLS] a b [SEP] a b c d [SEP]"),
        )
    ),
    (
        ("/v1/ranking",),
        {"query": {"text": "a"}, "passages": [{"text": "b"}, {"text": LONG}], "truncate": "END"},
        CROSS_ENCODER,
        ["[CLS] a [SEP] b [SEP]", "[CLS] a [SEP] a b c d e f [SEP]"],
    ),
)


@pytest.mark.parametrize(
    ("path", "body", "card", "sequences"),
    [(path, body, card, sequences) for paths, body, card, sequences in JOBS for path in paths],
)
async def test_the_sequences_that_a_request_becomes(
    path: str, body: Fields, card: dict[str, object], sequences: list[str]
) -> None:
    """What a bound, a side or a prompt makes of texts; a bound above the model's limit says nothing."""
    _, job = await asked(path, body, **card)
    assert words(job) == sequences


SCORES = {"text_1": "a", "text_2": ["b", "c"]}
RANKED = {"query": "a", "documents": ["b", "c", "d"]}
ACTIVATED = CROSS_ENCODER | {"activation": Activation.SIGMOID}
SIGMOIDS = [1 / (1 + math.exp(-logit)) for logit in (1, 3)]
INPUTS = {"inputs": [{"content": [{"type": "text", "text": "a"}]}]}
ROW = [3.1] * 8
IDS = [WORDS.index(word) for word in ("[CLS]", *LONG.split(), "[SEP]")]
NAMED = {"text": "b", "url": "https://example.org", "pages": 3, "price": 1.0, "author": None}

REPLIES: tuple[tuple[tuple[str, ...], Fields, dict[str, object], str, Any], ...] = (
    *(
        (("/score",), SCORES | {name: False}, ACTIVATED, "data.*.score", [1.0, 3.0])
        for name in ("use_activation", "softmax", "activation")
    ),
    (("/score",), SCORES, ACTIVATED, "data.*.score", pytest.approx(SIGMOIDS)),
    *(
        (RERANKS, RANKED | {name: False}, ACTIVATED, "results.*.relevance_score", [3.0, 3.0, 1.0])
        for name in ("use_activation", "softmax", "activation")
    ),
    (("/classify",), {"input": "a", "use_activation": False}, CLASSIFIER, "data.0.probs", [1.0, 3.0]),
    (("/pooling",), {"input": "a", "use_activation": False}, CLASSIFIER, "data.0.data", [1.0, 3.0]),
    (("/classify",), {"input": "a"}, CLASSIFIER, "data.0.probs", pytest.approx([0.1192029, 0.8807971])),
    *(
        (RERANKS, RANKED | {"top_n": top_n}, CROSS_ENCODER, "results.*.index", order)
        for top_n, order in ((0, [1, 2, 0]), (None, [1, 2, 0]), (9, [1, 2, 0]), (2, [1, 2]), (2.0, [1, 2]))
    ),
    (("/v1/rerank",), RANKED, CROSS_ENCODER, "meta.api_version.version", "1"),
    (("/v2/rerank",), RANKED, CROSS_ENCODER, "meta.api_version.version", "2"),
    *(
        (
            RERANKS,
            {"query": "a", "documents": text, "return_documents": True},
            CROSS_ENCODER,
            "results.*.document",
            [{"text": text}],
        )
        for text in ("", "b", "bc")
    ),
    (
        RERANKS,
        {"query": "a", "documents": ["c", NAMED], "return_documents": True},
        CROSS_ENCODER,
        "results.*.document",
        [NAMED, {"text": "c"}],
    ),
    *(
        (("/v1/rerank",), {"query": "a", "documents": ["b"], name: value}, CROSS_ENCODER, "results.*.index", [0])
        for name, value in (
            ("rank_fields", ["text"]),
            ("priority", 0),
            ("return_embeddings", False),
            ("padding", "do_not_pad"),
            ("max_chunks_per_doc", 10),
            ("rank_fields", None),
        )
    ),
    (
        ("/v1/ranking",),
        {"query": {"text": "a"}, "passages": [{"text": "b"}, {"text": "c"}, {"text": "d e"}]},
        CROSS_ENCODER,
        "",
        {
            "rankings": [{"index": 1, "logit": 3.0}, {"index": 2, "logit": 3.0}, {"index": 0, "logit": 1.0}],
            "usage": {"prompt_tokens": 16, "total_tokens": 16},
        },
    ),
    (("/v1/embed",), {"texts": ["a"], "embedding_types": None}, {}, "embeddings", [ROW]),
    (("/v1/embed",), {"texts": ["a"], "embedding_types": None}, {}, "response_type", "embeddings_floats"),
    (("/v1/embed",), {"texts": ["a"]}, {}, "meta.api_version", {"version": "1"}),
    (
        ("/v1/embed", "/v2/embed"),
        {"texts": ["a"], "embedding_types": ["float", "ubinary"]},
        {},
        "embeddings",
        {"float": [ROW], "ubinary": [[255]]},
    ),
    (("/v1/embed",), {"texts": ["a"], "embedding_types": ["float"]}, {}, "response_type", "embeddings_by_type"),
    (("/v2/embed",), {"texts": ["a"]}, {}, "embeddings", {"float": [ROW]}),
    (("/v2/embed",), {"texts": ["a"]}, {}, "meta.api_version", {"version": "2"}),
    (("/v2/embed",), {"texts": None, "images": [], **INPUTS}, {}, "texts", ["a"]),
    (
        ("/v2/embed",),
        {"texts": ["a"]}
        | dict.fromkeys(
            (
                "inputs",
                "images",
                "model",
                "input_type",
                "embedding_types",
                "truncate",
                "max_tokens",
                "priority",
                "output_dimension",
            )
        ),
        {},
        "texts",
        ["a"],
    ),
    (
        ("/tokenize",),
        {"prompt": LONG},
        QUERY_PROMPT | {"default_prompt_name": "query"},
        "",
        {"count": len(IDS), "max_model_len": 10, "tokens": IDS, "token_strs": None},
    ),
    (("/tokenize",), {"prompt": "", "return_token_strs": True}, {}, "token_strs", ["[CLS]", "[SEP]"]),
    (
        ("/tokenize",),
        {"prompt": "a b", "add_special_tokens": False, "return_token_strs": True},
        {},
        "token_strs",
        ["a", "b"],
    ),
    (("/detokenize",), {"tokens": IDS}, {}, "", {"prompt": f"[CLS] {LONG} [SEP]"}),
    *(
        (("/predict",), {"inputs": "a", "parameters": {"top_k": top_k}}, CROSS_ENCODER, "0.*.label", ["LABEL_0"])
        for top_k in (1, 1.0, 2**64)
    ),
    *(
        (("/v1/embeddings",), {"input": ["a", "b"], "output_dtype": kind}, {}, "data.*.embedding", [[bits], [bits]])
        for kind, bits in (("binary", 127), ("ubinary", 255))
    ),
)
"""Paths, a body, the card, a place in the reply (`*`: of each entry), and what is there.

The fake's logits are 1, 3, 3, 2.
"""


def at(content: Any, place: str) -> Any:
    """What is at a place of a reply."""
    for number, step in enumerate(steps := place.split(".") if place else []):
        if step == "*":
            return [at(entry, ".".join(steps[number + 1 :])) for entry in content]
        content = content[int(step) if isinstance(content, list) else step]
    return content


@pytest.mark.parametrize(
    ("path", "body", "card", "place", "expected"),
    [(path, *rest) for paths, *rest in REPLIES for path in paths],
)
async def test_what_a_reply_says(path: str, body: Fields, card: dict[str, object], place: str, expected: Any) -> None:
    told, _ = await asked(path, body, **card)
    assert at(told, place) == expected


@pytest.mark.parametrize(("path", "body"), [("/score", SCORES), ("/v1/rerank", RANKED)])
async def test_rows_as_the_model_gives_them_are_of_late_interaction_alone(path: str, body: Fields) -> None:
    """vLLM compares vectors by cosine, whatever length they have."""
    for card, fields, unit_rows in (
        (LATE, {}, True),
        (LATE, {"use_activation": False}, False),
        ({}, {"use_activation": False}, True),
    ):
        _, job = await asked(path, body | fields, **card)
        assert isinstance(job.work, Score)
        assert job.work.unit_rows is unit_rows


@pytest.mark.parametrize(
    ("fields", "side"),
    [
        ({"task": "retrieval.query"}, InputType.QUERY),
        ({"task": "retrieval.passage"}, InputType.DOCUMENT),
        ({"task": "text-matching"}, InputType.UNSPECIFIED),
        ({"task": "clustering"}, InputType.UNSPECIFIED),
        ({"input_type": "passage"}, InputType.DOCUMENT),
        ({"input_type": "query", "task": "retrieval.query"}, InputType.QUERY),
    ],
)
async def test_what_a_text_is_by_either_word(fields: dict[str, str], side: InputType) -> None:
    _, job = await asked("/v1/embeddings", {"input": "a"} | fields)
    assert job.work.input_type is side


async def test_the_name_of_a_reply() -> None:
    api = HttpApi(Worker())
    headers = (("content-type", "application/json"), ("x-request-id", "call"))
    named = await api.ask("/v1/embeddings", {"input": "a", "request_id": "mine"}, headers=headers)
    assert (named.json["id"], named.headers["x-request-id"]) == ("embd-mine", "call")
    assert (await api.ask("/v1/embeddings", {"input": "a"}, headers=headers)).json["id"] == "embd-call"


class Certain(Worker):
    """Logits of 20, 60, 60 and 40, of which a sigmoid in float32 makes 1."""

    async def run(self, model: ServedModel, job: Job) -> JobResult:
        result = await super().run(model, job)
        return replace(result, scores=(20 * np.frombuffer(result.scores, dtype="<f4")).tobytes())


FOUR = ["b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        *((path, {"query": "a", "documents": FOUR}, "results.*.index") for path in RERANKS),
        ("/rerank", {"query": "a", "texts": FOUR}, "*.index"),
        ("/v1/ranking", {"query": {"text": "a"}, "passages": [{"text": text} for text in FOUR]}, "rankings.*.index"),
    ],
)
async def test_documents_of_one_score_come_in_the_order_of_their_logits(path: str, body: Fields, place: str) -> None:
    """Of equal logits the request's order counts, and `top_n` cuts behind the best."""
    ask = HttpApi(Certain(**CROSS_ENCODER)).ask
    assert at((await ask(path, body)).json, place) == [1, 2, 3, 0]
    if place == "results.*.index":
        assert at((await ask(path, body | {"top_n": 2})).json, place) == [1, 2]


@pytest.mark.parametrize(
    ("path", "body", "place", "labels"),
    [
        ("/predict", {"inputs": "a"}, "*.label", ["x", "y", "z", "w"]),
        ("/classify", {"input": "a"}, "data.*.label", ["x"]),
    ],
)
async def test_the_best_label_of_one_score_is_that_of_the_largest_logit(
    path: str, body: Fields, place: str, labels: list[str]
) -> None:
    """Of several labels with a sigmoid of their own."""
    card = CLASSIFIER | {"labels": ("w", "x", "y", "z"), "activation": Activation.SIGMOID}
    assert at((await HttpApi(Certain(**card)).ask(path, body)).json, place) == labels


async def test_a_passage_over_the_limit_is_refused_unless_its_end_may_go() -> None:
    body = {"query": {"text": "a"}, "passages": [{"text": "b"}, {"text": LONG}]}
    for truncate in ({}, {"truncate": None}, {"truncate": "NONE"}):
        told = await HttpApi(Worker(**CROSS_ENCODER)).ask("/v1/ranking", body | truncate)
        assert (told.status, told.json["error"]["param"]) == (400, "passages[1].text")


ASKS: tuple[tuple[str, Fields, dict[str, object]], ...] = (
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
async def test_on_teis_paths_any_name_means_the_only_model(path: str, body: Fields, changes: dict[str, Any]) -> None:
    """The original serves one, and knows no such field. Where there are several the name counts."""
    for name in ("text-embeddings-inference", "", None):
        assert (await HttpApi(Worker(**changes)).ask(path, body | {"model": name})).status == 200
    assert (await HttpApi(Two(**changes)).ask(path, body | {"model": "fake"})).status == 200
    told = await HttpApi(Two(**changes)).ask(path, body | {"model": "any"})
    assert (told.status, "name one" in told.json["error"]) == (404, True)


async def test_documents_at_rerank_are_coheres_and_name_their_model() -> None:
    body = {"query": "a", "documents": ["b"], "model": "other"}
    assert (await HttpApi(Worker(**CROSS_ENCODER)).ask("/rerank", body)).status == 404


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

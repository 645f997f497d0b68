"""Errors of the HTTP API name what the caller sent, in the caller's shape, and recommend what this path has."""

import re
from typing import Any

import pytest
from asgi import HttpApi, Worker
from test_token_bounds import CROSS_ENCODER, LONG

from frontend_service.domain.limits import Limits
from shared.vectors import Activation, OutputKind, Task

CLASSIFIER: dict[str, object] = {"tasks": (Task.CLASSIFY,), "labels": ("no", "yes"), "activation": Activation.SOFTMAX}
TOKEN_CLASSIFIER = CLASSIFIER | {"tasks": (Task.CLASSIFY_TOKENS,)}
YES_NO = {"pair_template": "{query} {document}", "labels": ("yes",)}
SIMILARITY = {"inputs": {"source_sentence": "a", "sentences": ["b"]}}
SPANS = {"pools_spans": True}
LATE = {"outputs": (OutputKind.MULTI_VECTOR,)}
CUTS = "truncate_prompt_tokens"
CUT = f"{CUTS}: -1 would cut"


async def refusal(path: str, body: object, **card: object) -> tuple[str, str]:
    """The message and the field of an error in OpenAI's shape."""
    told = await HttpApi(Worker(**card)).ask(path, body)
    assert told.status == 400, told.body
    return told.json["error"]["message"], told.json["error"]["param"]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings", "/v1/multi-vector", "/pooling", "/v1/pooling"])
@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        (LONG, "input", f"input has 14 tokens, the limit is 10; {CUT} it"),
        (["a", LONG], "input[1]", f"input[1] has 14 tokens, the limit is 10; {CUT} it"),
        ([LONG], "input[0]", f"input[0] has 14 tokens, the limit is 10; {CUT} it"),
        ([1] * 11, "input", "input has 11 tokens, the limit is 10"),
        ([[1], [2] * 11], "input[1]", "input[1] has 11 tokens, the limit is 10"),
        ([1, 999], "input", "input has the id 999, the vocabulary ends at 32"),
        ([[1], [999]], "input[1]", "input[1] has the id 999, the vocabulary ends at 32"),
        ([[1], []], "input[1]", "input[1] has no ids"),
        ([], "input", "input is empty"),
        (["a", 1], "input[1]", "input[1] is of another kind than input[0]"),
    ],
)
async def test_an_input_is_named_as_it_was_sent(path: str, given: object, field: str, message: str) -> None:
    """An input has a number only where there are several."""
    assert await refusal(path, {"input": given}) == (message, field)


@pytest.mark.parametrize("path", ["/classify", "/v1/classify", "/pooling"])
@pytest.mark.parametrize("card", [CLASSIFIER, TOKEN_CLASSIFIER], ids=["classifier", "token-classifier"])
async def test_a_text_to_classify_is_named_as_it_was_sent(path: str, card: dict[str, object]) -> None:
    if card is TOKEN_CLASSIFIER and path != "/pooling":
        return
    assert (await refusal(path, {"input": LONG}, **card))[1] == "input"
    assert (await refusal(path, {"input": ["a", LONG]}, **card))[0].startswith("input[1] has 14 tokens")


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    ("first", "second"),
    [("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items")],
)
@pytest.mark.parametrize("card", [{}, CROSS_ENCODER], ids=["vectors", "pairs"])
async def test_a_side_of_a_score_is_named_as_it_was_sent(
    path: str, first: str, second: str, card: dict[str, object]
) -> None:
    """The caller chose one of four pairs of names."""

    async def field(**sides: object) -> str:
        message, param = await refusal(path, sides, **card)
        assert param in message
        return param

    assert await field(**{first: "a", second: [LONG, "b"]}) == f"{second}[0]"
    assert await field(**{first: "a", second: ["b", LONG]}) == f"{second}[1]"
    assert await field(**{first: "a", second: LONG}) == second
    assert await field(**{first: ["a", "b"], second: ["b", LONG]}) == f"{second}[1]"
    assert await field(**{first: [], second: ["b"]}) == first
    assert await field(**{first: "a", second: []}) == second
    assert await field(**{first: ["a", "b"], second: ["c"]}) == second
    assert await field(**{first: "a"}) in (second, "documents")
    if not card:
        assert await field(**{first: ["a", LONG], second: ["b", "c"]}) == f"{first}[1]"
        assert await field(**{first: LONG, second: ["b", "c"]}) == first


@pytest.mark.parametrize(
    ("sides", "field"),
    [
        ({}, "text_1"),
        ({"text_2": "a"}, "text_1"),
        ({"text_1": "a", "data_2": "b"}, "text_1"),
        ({"queries": "a", "text_2": "b"}, "text_2"),
        ({"queries": "a", "documents": "b", "items": "c"}, "items"),
        ({"text_1": "a", "text_2": "b", "queries": "c"}, "queries"),
        ({"text_1": 5, "text_2": "b"}, "text_1"),
        ({"text_1": {"content": []}, "text_2": "b"}, "text_1"),
        ({"data_1": ["a"], "data_2": ["b", None]}, "data_2[1]"),
    ],
)
async def test_sides_that_are_no_pair(sides: dict[str, object], field: str) -> None:
    message, param = await refusal("/score", sides)
    assert param == field
    assert field in message


@pytest.mark.parametrize(
    ("path", "body", "card", "field"),
    [
        ("/v1/embeddings", {"input": "a"}, LATE, "model"),
        ("/v1/embeddings", {"input": "a"}, CLASSIFIER, "model"),
        ("/score", {"text_1": "a", "text_2": "b"}, {"methods": ()}, "model"),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, {"methods": ()}, "model"),
        ("/classify", {"input": "a"}, CLASSIFIER | YES_NO, "input"),
        ("/pooling", {"input": [1], "task": "classify"}, CLASSIFIER, "input"),
        ("/pooling", {"input": "a", "dimensions": 4}, CLASSIFIER, "dimensions"),
        ("/pooling", {"input": "a", "use_activation": True, "normalize": False}, {}, "normalize"),
        ("/score", {"text_1": "a", "text_2": "b", "use_activation": True, "softmax": False}, {}, "softmax"),
        ("/v1/embeddings", {"input": "a", "truncate": "NONE", "truncate_prompt_tokens": 3}, {}, "truncate"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "truncation": False, CUTS: -1}, {}, "truncation"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "bytes"}, {}, "encoding_format"),
        ("/v1/embeddings", {"input": "a", "endianness": "big"}, {}, "endianness"),
        ("/v1/embeddings", {"input": "a", "output_dtype": "binary", "embed_dtype": "float16"}, {}, "output_dtype"),
        ("/v1/embeddings", {"input": "a", "truncate": "middle"}, {}, "truncate"),
        ("/v1/embeddings", {"input": "a", "task": "poetry"}, {}, "task"),
        ("/v1/embeddings", {"input": "a", "task": "retrieval.query", "input_type": "passage"}, {}, "task"),
        ("/v1/embeddings", {"input": "a", "late_chunking": True}, {}, "late_chunking"),
        ("/v1/embeddings", {"input": [4], "late_chunking": True}, SPANS, "late_chunking"),
        ("/v1/embeddings", {"input": ["a ", " "], "late_chunking": True}, SPANS, "input[1]"),
        ("/v1/embeddings", {"input": ["a " * 99, "b"], "late_chunking": True}, SPANS, "input"),
        ("/v1/embeddings", {"input": "a", "late_chunking": True, "truncate": True}, SPANS, "late_chunking"),
        ("/v1/embeddings", {"input": "a", "late_chunking": True, "task": "retrieval.query"}, SPANS, "late_chunking"),
        ("/v1/embeddings", {"input": "a", "late_chunking": True, "spans": [[[0, 1]]]}, SPANS, "spans"),
        ("/v1/embeddings", {"input": "a", "spans": [[[0, 1]], [[0, 1]]]}, SPANS, "spans"),
        ("/v1/embeddings", {"input": "a", "spans": [[[0, 2]]]}, SPANS, "spans[0]"),
        ("/v1/embeddings", {"input": "a", "window_overlap": 1}, SPANS, "window_overlap"),
        ("/v1/embeddings", {"input": "a", "late_chunking": True, "window_overlap": -1}, SPANS, "window_overlap"),
        ("/v1/multi-vector", {"input": "a", "late_chunking": True}, SPANS, "late_chunking"),
        ("/v1/embeddings", {"input": "a", "embedding_type": "int8"}, {}, "embedding_type"),
        ("/v1/embeddings", {"input": "a", "modality": "image"}, {}, "modality"),
        ("/v1/embeddings", {"messages": [{"role": "user", "content": "a"}]}, {}, "messages"),
        ("/v1/embeddings", {"input": [{"role": "user", "content": "a"}]}, {}, "input[0].text"),
        ("/v1/embeddings", {"input": ["a", {"image": "data:image/png;base64,AAAA"}]}, {}, "input[1].image"),
        ("/v1/embeddings", {"input": ["a", {"text": "b", "pdf": "AAAA"}]}, {}, "input[1].pdf"),
        ("/v1/multi-vector", {"input": {"url": "https://a.b"}}, LATE, "input.url"),
        ("/v1/embeddings", {"input": [{"text": 5}]}, {}, "input[0].text"),
        ("/v1/embeddings", {"input": ["a", {"text": LONG}]}, {}, "input[1]"),
        ("/v1/embeddings", {"input": [{"text": "a"}, [1]]}, {}, "input[1]"),
        ("/v1/embeddings", {"input": "a", "truncation": False, CUTS: 3}, {}, "truncation"),
        ("/v1/embeddings", {"input": "a", "truncation": False, "truncate": True}, {}, "truncation"),
        ("/v1/embeddings", {"input": "a", "dimensions": 4, "output_dimension": 2}, {}, "output_dimension"),
        ("/v1/embeddings", {"input": "a", "output_dimension": 9}, {}, "output_dimension"),
        ("/v1/embeddings", {"input": "a", "output_dtype": "int8"}, {}, "output_dtype"),
        ("/v1/embeddings", {"input": "a", "output_dtype": "uint8"}, {}, "output_dtype"),
        ("/v1/embeddings", {"input": "a", "output_dtype": "binary", "embed_dtype": "float16"}, {}, "output_dtype"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 1, "top_k": 2}, {}, "top_k"),
        ("/v1/embeddings", {"input": "a", "task": "code.query"}, {"prompts": {"query": "query : "}}, "task"),
        ("/v1/embeddings", {"input": [1], "prompt": "b"}, {}, "prompt"),
        ("/v1/embeddings", {"input": [1], "prompt_name": "b"}, {}, "prompt_name"),
        ("/v1/embeddings", {"input": "a", "embed_dtype": "fp8_e4m3"}, {}, "embed_dtype"),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 1}, {}, "truncate_prompt_tokens"),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 0}, {}, "truncate_prompt_tokens"),
        ("/score", {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 0}, {}, "truncate_prompt_tokens"),
        (
            "/score",
            {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 0},
            CROSS_ENCODER,
            "truncate_prompt_tokens",
        ),
        (
            "/score",
            {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 3},
            CROSS_ENCODER,
            "truncate_prompt_tokens",
        ),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": "3"}, {}, "truncate_prompt_tokens"),
        ("/v1/embeddings", {"input": "a", "dimensions": 4.5}, {}, "dimensions"),
    ],
)
async def test_a_field_that_cannot_be_had_is_named(
    path: str, body: dict[str, Any], card: dict[str, object], field: str
) -> None:
    message, param = await refusal(path, body, **card)
    assert param == field
    assert field.partition("[")[0] in message


@pytest.mark.parametrize(
    ("path", "body", "beside"),
    [
        ("/v1/embeddings", {"input": [LONG]}, {"truncate_prompt_tokens": -1}),
        ("/v1/multi-vector", {"input": [LONG]}, {"truncate_prompt_tokens": -1}),
        ("/pooling", {"input": [LONG]}, {"truncate_prompt_tokens": -1}),
        ("/classify", {"input": [LONG]}, {"truncate_prompt_tokens": -1}),
        ("/score", {"text_1": "a", "text_2": [LONG]}, {"truncate_prompt_tokens": -1}),
    ],
)
async def test_the_remedy_for_a_long_text_helps(path: str, body: dict[str, Any], beside: dict[str, Any]) -> None:
    """The error recommends a field with a value, and the path honours it."""
    card = CLASSIFIER if path == "/classify" else CROSS_ENCODER if path == "/score" else {}
    message, _ = await refusal(path, body, **card)
    assert {name: int(value) for name, value in re.findall(r"(\w+): (-?\d+) would cut", message)} == beside
    worker = Worker(**card)
    told = await HttpApi(worker).ask(path, body | beside)
    assert path == "/v1/multi-vector" or told.status == 200, told.body
    assert worker.jobs[0].tokens.lengths[-1] == 10


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings", "/v1/multi-vector"])
@pytest.mark.parametrize(("field", "value"), [("truncate", False), ("truncate", "NONE"), ("truncation", False)])
async def test_the_remedy_is_the_field_that_was_sent(path: str, field: str, value: object) -> None:
    """Another one beside it would contradict it."""
    message, _ = await refusal(path, {"input": LONG, field: value})
    assert message == f"input has 14 tokens, the limit is 10; {field}: true would cut it"
    worker = Worker()
    await HttpApi(worker).ask(path, {"input": LONG, field: True})
    assert worker.jobs[0].tokens.lengths == (10,)


FEWER = "ask for fewer inputs or fewer dimensions"


@pytest.mark.parametrize(
    ("path", "body", "card", "remedy"),
    [
        ("/v1/embeddings", {"input": ["a"]}, {}, f"{FEWER}, or use EmbedStream over gRPC"),
        ("/v1/multi-vector", {"input": ["a"]}, {}, "ask for fewer dimensions, or send fewer tokens"),
        ("/pooling", {"input": ["a"]}, {}, f"{FEWER}, or use EmbedStream over gRPC"),
        ("/classify", {"input": ["a"]}, CLASSIFIER, "ask for fewer inputs"),
        ("/pooling", {"input": ["a"]}, TOKEN_CLASSIFIER, "ask for fewer inputs"),
        ("/score", {"text_1": "a", "text_2": ["b"]}, {}, "ask for fewer scores"),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, {}, "ask for fewer scores"),
        ("/v1/embed", {"texts": ["a"]}, {}, "ask for fewer texts or a smaller output_dimension"),
        ("/v2/embed", {"texts": ["a"]}, {}, "ask for fewer texts or a smaller output_dimension"),
        ("/embed", {"inputs": "a"}, {}, "ask for fewer inputs"),
        ("/embed_all", {"inputs": "a"}, {}, "send fewer tokens"),
        ("/embed_sparse", {"inputs": "a"}, {"outputs": (OutputKind.SPARSE,)}, "ask for fewer inputs"),
        ("/predict", {"inputs": "a"}, CLASSIFIER, "ask for fewer inputs"),
        ("/tokenize", {"inputs": "a"}, {}, "ask for fewer inputs"),
        ("/decode", {"ids": [5]}, {}, "ask for fewer ids"),
        ("/similarity", SIMILARITY, {}, "ask for fewer sentences"),
        ("/rerank", {"query": "a", "texts": ["b"], "return_text": True}, {}, "set top_n, or leave return_text unset"),
        (
            "/v1/rerank",
            {"query": "a", "documents": ["b"], "return_documents": True},
            {},
            "set top_n, or leave return_documents unset",
        ),
    ],
)
async def test_the_remedy_for_a_large_reply_is_one_of_this_path(
    path: str, body: dict[str, Any], card: dict[str, object], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = HttpApi(Worker(**card))
    monkeypatch.setattr("frontend_service.domain.limits.ENVELOPE_BYTES", Limits().message_bytes)
    told = await api.ask(path, body)
    error = told.json.get("error", told.json)
    message = error if isinstance(error, str) else error["message"]
    assert message.endswith(f"; {remedy}"), told.body


@pytest.mark.parametrize("fields", [{"truncate_prompt_tokens": -1}, {"truncate": True}, {"truncate_prompt_tokens": 4}])
async def test_ids_are_never_cut_and_the_error_says_so(fields: dict[str, Any]) -> None:
    limit = 4 if 4 in fields.values() else 10
    message, param = await refusal("/v1/embeddings", {"input": [[1], [2] * 11]} | fields)
    assert (message, param) == (f"input[1] has 11 tokens, the limit is {limit}; token ids are never cut", "input[1]")


async def test_of_many_texts_the_count_is_named() -> None:
    """Whichever field they came in."""
    many = ["a"] * 4097
    assert (await refusal("/v1/embeddings", {"input": many}))[0] == "input has 4097 entries, the limit is 4096"
    assert (await refusal("/v1/embeddings", {"input": [[1]] * 4097}))[1] == "input"
    assert (await refusal("/score", {"data_1": many, "data_2": many}))[1] == "data_1"

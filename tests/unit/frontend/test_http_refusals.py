"""Bad input of the HTTP API: refused in the words of each shape, and before a body is read where that is possible."""

import json
import re
from typing import Any

import pytest
from asgi import JSON, api_of
from http_fields.field import CLASSIFIER, CROSS_ENCODER, LONG

from shared.vectors import OutputKind

EMBED = "/v1/embeddings"
YES_NO = {"pair_template": "{query} {document}", "labels": ("yes",)}
TEMPLATE = CROSS_ENCODER | {"pair_template": "query : {query} passage : {document} :"}
SPANS = {"pools_spans": True}
LATE = {"outputs": (OutputKind.MULTI_VECTOR,)}
CUT = "truncate_prompt_tokens"
MANY = ["a"] * 4097
NO_TEXTS = {"methods": ()}

Row = tuple[str, dict[str, Any], dict[str, object], str]
"""A path, a body, what is unlike the fake model's card, and the field that the error names."""


def inputs_of(*texts: str) -> list[dict[str, Any]]:
    """Texts as /v2/embed takes them beside images."""
    return [{"content": [{"type": "text", "text": text}]} for text in texts]


def embeddings(field: str, card: dict[str, object] | None = None, **body: Any) -> Row:
    return EMBED, {"input": "a", **body}, card or {}, field


def score(field: str, card: dict[str, object] | None = None, **body: Any) -> Row:
    return "/score", body, card or {}, field


def reranked(field: str, **body: Any) -> Row:
    return "/v1/rerank", {"query": "a", "documents": ["b"], **body}, CROSS_ENCODER, field


OPENAI: tuple[Row, ...] = (
    (EMBED, {}, {}, "input"),
    embeddings("input", input=None),
    embeddings("input", input=[1] * 11),
    embeddings("input", input=[1, 999]),
    embeddings("input", input=[[1]] * 4097),
    embeddings("input[0]", input=[LONG]),
    embeddings("input[0]", input=[[]]),
    embeddings("input[0]", input=[2**31]),
    embeddings("input[1]", input=[[1], [2] * 11]),
    embeddings("input[1]", input=[[1], [999]]),
    embeddings("input[1]", input=[[1], []]),
    embeddings("input[1]", input=[1, -1]),
    embeddings("input[0][1]", input=[[1, "a"]]),
    embeddings("input[1]", input=[{"text": "a"}, [1]]),
    embeddings("input[0].text", input=[{"role": "user", "content": "a"}]),
    embeddings("input[1].image", input=["a", {"image": "data:image/png;base64,AAAA"}]),
    embeddings("input[1].pdf", input=["a", {"text": "b", "pdf": "AAAA"}]),
    embeddings("model", LATE),
    embeddings("model", model="other"),
    embeddings("input_type", input_type="poem"),
    embeddings("dimensions", dimensions=4.5),
    embeddings("output_dimension", dimensions=4, output_dimension=2),
    embeddings("output_dtype", output_dtype="int8"),
    embeddings("output_dtype", output_dtype="binary", embed_dtype="float16"),
    embeddings("truncate", truncate="NONE", truncate_prompt_tokens=3),
    embeddings("truncate", truncate="middle"),
    embeddings("truncation", truncation=False, truncate_prompt_tokens=3),
    embeddings(CUT, truncate_prompt_tokens=0),
    embeddings(CUT, truncate_prompt_tokens="3"),
    embeddings("task", task="poetry"),
    embeddings("task", task="retrieval.query", input_type="passage"),
    embeddings("task", {"prompts": {"query": "query : "}}, task="code.query"),
    embeddings("prompt", input=[1], prompt="b"),
    embeddings("prompt_name", input=[1], prompt_name="b"),
    embeddings("late_chunking", late_chunking=True),
    embeddings("late_chunking", SPANS, input=[4], late_chunking=True),
    embeddings("input[1]", SPANS, input=["a ", " "], late_chunking=True),
    embeddings("input", SPANS, input=["a " * 99, "b"], late_chunking=True),
    embeddings("spans", SPANS, spans=[[[0, 1]], [[0, 1]]]),
    embeddings("spans[0]", SPANS, spans=[[[0, 2]]]),
    embeddings("window_overlap", SPANS, window_overlap=1),
    ("/v1/multi-vector", {"input": "a", "late_chunking": True}, SPANS, "late_chunking"),
    ("/v1/multi-vector", {"input": {"url": "https://a.b"}}, LATE, "input.url"),
    ("/pooling", {"input": ["a", LONG]}, {}, "input[1]"),
    ("/pooling", {"input": [1], "task": "classify"}, CLASSIFIER, "input"),
    ("/pooling", {"input": "a", "dimensions": 4}, CLASSIFIER, "dimensions"),
    ("/pooling", {"input": "a", "use_activation": True, "normalize": False}, {}, "normalize"),
    ("/pooling", {"input": "a", "task": "sing"}, {}, "task"),
    ("/classify", {"input": []}, {}, "input"),
    ("/v1/classify", {"input": ["a", LONG]}, CLASSIFIER, "input[1]"),
    ("/classify", {"input": "a"}, CLASSIFIER | YES_NO, "input"),
    score("text_1"),
    score("text_1", text_2="a"),
    score("text_1", text_1="a", data_2="b"),
    score("text_1", text_1=5, text_2="b"),
    score("text_1", text_1={"content": []}, text_2="b"),
    score("text_1", text_1=LONG, text_2=["b", "c"]),
    score("text_2", text_1="a"),
    score("text_2", text_1="a", text_2=[]),
    score("text_2", text_1=["a", "b"], text_2=["c"]),
    score("text_2", queries="a", text_2="b"),
    score("text_2[0]", text_1="a", text_2=[LONG, "b"]),
    score("data_1", data_1=MANY, data_2=MANY),
    score("data_2[1]", data_1=["a"], data_2=["b", None]),
    score("items", queries="a", documents="b", items="c"),
    score("queries", text_1="a", text_2="b", queries="c"),
    score("documents[1]", CROSS_ENCODER, queries="a", documents=["b", LONG]),
    score("softmax", text_1="a", text_2="b", use_activation=True, softmax=False),
    score("model", NO_TEXTS, text_1="a", text_2="b"),
    score(CUT, CROSS_ENCODER, text_1="a", text_2="b", truncate_prompt_tokens=3),
    reranked("documents", documents=[]),
    reranked("documents[0].text", documents=[{"text": 5}]),
    reranked("documents[1].text", documents=["b", {"title": "c"}]),
    reranked("documents[1].text", documents=["b", {"text": LONG}], truncation=False),
    reranked("top_n", top_n=-1),
    reranked("top_k", top_n=1, top_k=2),
    reranked("truncation", truncation=False, truncate_prompt_tokens=-1),
    ("/v1/rerank", {"query": "a", "documents": ["b"]}, NO_TEXTS, "model"),
    ("/v1/rerank", {"query": "a", "documents": ["b"], "truncation_side": "left"}, TEMPLATE, "truncation_side"),
    ("/v1/ranking", {"query": {"text": "a"}, "passages": []}, {}, "passages"),
    ("/v1/ranking", {"query": {"text": LONG}, "passages": [{"text": "a"}]}, {}, "query.text"),
    ("/v1/ranking", {"query": {"text": "a"}, "passages": [{"text": "b"}, {"text": LONG}]}, {}, "passages[1].text"),
    ("/v1/ranking", {"query": {"text": "a"}, "passages": [{"text": LONG}], "truncate": "NONE"}, {}, "passages[0].text"),
    ("/v1/ranking", {"query": {"text": "a", "image": "x"}, "passages": [{"text": "a"}]}, {}, "query.image"),
    ("/v1/ranking", {"query": {"text": "a"}, "passages": [{"text": "a", "image": "x"}]}, {}, "passages[0].image"),
    ("/v1/ranking", {"query": "a", "passages": [{"text": "a"}]}, {}, "query"),
    ("/v1/ranking", {"query": {"text": "a"}, "passages": [{"title": "a"}]}, {}, "passages[0].text"),
    ("/v1/ranking", {"query": {"text": "a"}, "passages": [{"text": "a"}], "truncate": "START"}, {}, "truncate"),
    ("/detokenize", {"tokens": []}, {}, "tokens"),
    ("/detokenize", {"tokens": [5, 99_999]}, {}, "tokens"),
    ("/detokenize", {"ids": [5]}, {}, "tokens"),
)
COHERE: tuple[Row, ...] = (
    ("/v2/rerank", {"query": "a", "documents": ["b", {"text": LONG}], "truncation": False}, {}, "documents[1].text"),
    *(
        (path, body, {}, field)
        for path in ("/v1/embed", "/v2/embed")
        for body, field in (
            ({"texts": []}, "texts"),
            ({"texts": ["a", LONG], "truncate": "NONE"}, "texts[1]"),
            ({"inputs": inputs_of("a", LONG), "truncate": "NONE"}, "inputs[1].content[0].text"),
            ({"inputs": [{"content": [{"type": "image_url"}]}]}, "inputs[0].content[0].type"),
            ({"inputs": [{"content": [{"type": "text"}]}]}, "inputs[0].content[0].text"),
            ({"inputs": [{"content": []}]}, "inputs[0].content"),
            ({"inputs": [{"content": [{"text": "a"}, {"text": "b"}]}]}, "inputs[0].content"),
            ({"inputs": inputs_of("a"), "texts": ["a"]}, "texts and inputs"),
            ({"texts": ["a"], "embedding_types": []}, "embedding_types"),
            ({"texts": ["a"], "embedding_types": ["float3"]}, "embedding_types[0]"),
            ({"images": None}, "texts"),
            ({"texts": [], "inputs": []}, "texts"),
        )
    ),
)
SIDEWAYS = {"truncation_direction": "it's"}
TEI: tuple[Row, ...] = (
    ("/embed", {"inputs": ["a", LONG]}, {}, "inputs[1]"),
    ("/embed", {"inputs": ["a", ""]}, {}, "inputs[1]"),
    ("/embed", {"inputs": [[4], [4] * 11]}, {}, "inputs[1]"),
    ("/embed", {"inputs": [[4]], "prompt_name": "query"}, {}, "prompt_name"),
    ("/", {"query": "a", "texts": ["b", LONG]}, CROSS_ENCODER, "texts[1]"),
    ("/", {"query": "a", "documents": ["b", LONG], "truncation": False}, CROSS_ENCODER, "documents[1]"),
    ("/rerank", {"query": "a"}, {}, "texts"),
    ("/rerank", {"query": "a", "texts": []}, {}, "texts"),
    ("/rerank", {"query": "a", "texts": ["b", LONG]}, CROSS_ENCODER, "texts[1]"),
    ("/rerank", {"query": "a", "texts": ["b"], "truncation_direction": "left"}, TEMPLATE, "truncation_direction"),
    ("/predict", {"inputs": ["a", LONG]}, CROSS_ENCODER, "inputs[1]"),
    ("/predict", {"inputs": [["a", "b"], ["a", LONG]]}, CROSS_ENCODER, "inputs[1][1]"),
    ("/predict", {"inputs": []}, CROSS_ENCODER, "inputs"),
    ("/predict", {"inputs": ["", ""]}, CROSS_ENCODER, "inputs"),
    ("/predict", {"inputs": [[]]}, CROSS_ENCODER, "inputs[0]"),
    ("/predict", {"inputs": ["a", "b", "c"]}, CROSS_ENCODER, "inputs"),
    ("/predict", {"inputs": [["a"], ["b", "c"]]}, CROSS_ENCODER, "inputs[1]"),
    ("/similarity", {"inputs": {"source_sentence": LONG, "sentences": ["a"]}}, {}, "inputs.source_sentence"),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, {}, "inputs.sentences"),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["a", LONG]}}, {}, "inputs.sentences[1]"),
    (
        "/similarity",
        {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": SIDEWAYS},
        {},
        "parameters.truncation_direction",
    ),
    ("/tokenize", {"inputs": []}, {}, "inputs"),
    ("/tokenize", {"prompt": ["a"]}, {}, "prompt"),
    ("/tokenize", {"inputs": "a", "prompt": "b"}, {}, "prompt"),
    ("/decode", {"ids": []}, {}, "ids"),
    ("/decode", {"ids": [[99999]]}, {}, "ids[0]"),
)


@pytest.mark.parametrize(("path", "body", "card", "field"), [*OPENAI, *COHERE, *TEI])
async def test_bad_input_is_named_as_it_was_sent(
    path: str, body: dict[str, Any], card: dict[str, object], field: str
) -> None:
    """In the field of the error, or in front of its message where the shape has no such field."""
    reply = await api_of(**card).ask(path, body)
    assert reply.status in (400, 404, 413, 422), reply.body
    named, _ = reply.error
    assert named == field or re.search(rf"(^|\s){re.escape(field)}(:?\s|$)", named)


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        (EMBED, {"input": "a", "encoding_format": "hex"}, 400, "encoding_format is 'hex', there are base64, float"),
        (EMBED, {"input": "a b c d e f g h i j k"}, 400, "has 13 tokens, the limit is 10"),
        ("/embed", b"{", 400, "the body is no JSON"),
        ("/embed", {"inputs": "a b c d e f g h i j k"}, 413, "has 13 tokens, the limit is 10"),
        ("/embed_sparse", {"inputs": "a"}, 424, "the model has no SPARSE output"),
        ("/embed_all", {"inputs": "a", "model": "any"}, 424, "MULTI_VECTOR"),
        ("/predict", {"inputs": "a"}, 424, "the model is not for CLASSIFY"),
        ("/predict", {"inputs": [["a"], ["b", "c"]]}, 422, "inputs[1] has 2 entries, inputs[0] has 1: send"),
        ("/v2/rerank", {"query": "a", "documents": [{"image": "x"}]}, 400, "and only texts are served, no images"),
    ],
)
async def test_statuses_and_words_of_each_shape(path: str, body: object, status: int, words: str) -> None:
    reply = await api_of(outputs=(OutputKind.DENSE,)).ask(path, body)
    assert (reply.status, reply.headers["content-type"]) == (status, "application/json")
    assert words in reply.error[1]


@pytest.mark.parametrize(
    ("path", "method", "header", "status"),
    [
        ("/v1/models/other", "GET", (), 404),
        ("/health", "POST", (), 405),
        (EMBED, "POST", ("content-length", "70000000000"), 413),
        (EMBED, "POST", ("selvage-timeout", "soon"), 400),
        (EMBED, "POST", ("selvage-timeout", "nan"), 400),
        (EMBED, "POST", ("selvage-priority", "soon"), 400),
    ],
)
async def test_what_is_refused_before_the_body_is_read(
    path: str, method: str, header: tuple[str, str], status: int
) -> None:
    reply = await api_of().ask(path, b"{}", method=method, headers=[*JSON, header] if header else JSON)
    assert (reply.status, "allow" in reply.headers) == (status, status == 405), reply.body
    if header:
        assert reply.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "field", "kin"),
    [
        ("/pooling", {"input": "a", "output_dimension": 4}, "output_dimension", "dimensions"),
        ("/v1/embeddings", {"input": "a", "topK": 4}, "topK", "dimensions"),
        ("/v1/embeddings", {"input": "a", "instruction": "b"}, "instruction", "prompt"),
        ("/v1/embeddings", {"input": "a", "task_type": "search_query"}, "task_type", "task"),
        ("/score", {"text_1": "a", "text_2": "b", "prompt_name": "query"}, "prompt_name", "instruction"),
        ("/classify", {"input": "a", "top-k": 2}, "top-k", "truncation_side"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "normalize": False}, "normalize", "use_activation"),
        ("/v2/embed", {"texts": ["a"], "dimensions": 4}, "dimensions", "output_dimension"),
        ("/v1/ranking", {"query": {"text": "a"}, "passages": [{"text": "b"}], "top_n": 1}, "top_n", "truncate"),
        ("/embed", {"inputs": "a", "pooling": "cls"}, "pooling", "normalize"),
        ("/embed", {"inputs": "a", "parameters": {"truncate": True}}, "parameters", "normalize"),
        ("/embed", {"inputs": "a", "encoding_format": "float", "precision": "int8"}, "precision", "normalize"),
        ("/", {"inputs": "a", "max_length": 4}, "max_length", "truncate"),
        ("/rerank", {"query": "a", "texts": ["b"], "top_k": 1}, "top_k", "top_n"),
        ("/tokenize", {"inputs": "a", "truncate": True}, "truncate", "prompt_name"),
        (
            "/similarity",
            {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": {"normalize": False}},
            "parameters.normalize",
            "truncate",
        ),
    ],
)
async def test_an_unknown_field_that_would_change_the_answer_is_refused(
    path: str, body: dict[str, object], field: str, kin: str
) -> None:
    """It is told with what the path has of its kind. Null or empty it asks for nothing."""
    reply = await api_of().ask(path, body)
    assert reply.status == (422 if "error_type" in reply.json else 400)
    named, _, fields = reply.error[1].partition(" would change the answer, and is no field of this path, which has ")
    assert named == field
    assert kin in fields.split(", ")
    outer, _, inner = field.rpartition(".")
    assert "chat_template" not in fields  # it is refused too
    for nothing in (None, {}, [], ""):
        absent = await api_of().ask(path, body | ({outer: {inner: nothing}} if outer else {inner: nothing}))
        assert field.encode() not in absent.body
    if not outer:
        spaced = json.dumps({**body, field: None}).replace("null", "{ }").encode()
        assert field.encode() not in (await api_of().ask(path, spaced)).body


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "a"}),
        ("/v2/rerank", {"query": "a", "documents": [{"text": "b", "prompt": "c"}]}),
        ("/embed", {"inputs": "a"}),
    ],
)
async def test_other_unknown_fields_are_ignored(path: str, body: dict[str, object]) -> None:
    """Whatever they hold, since clients send fields of their own."""
    names = ("metadata", "topic", "stop", "dimmed", "taskId", "prompt_cache_key", "extra", "top_logprobs", "tags")
    assert (await api_of().ask(path, body | {name: {"top_k": 3} for name in names})).status == 200


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        (EMBED, b'{"input": ["a, [b] {c}", "TEXT", "d"]}', "input[1]"),
        (EMBED, b'{"model": "\\ud83d\\ude00", "input": [{"text": "a"}, {"text": "TEXT"}]}', "input[1].text"),
        ("/v2/embed", b'{"texts": ["\\"", "\\\\", "TEXT"]}', "texts[2]"),
        ("/v2/embed", b'{"inputs": [{"content": [{"type": "text", "text": "TEXT"}]}]}', "inputs[0].content[0].text"),
        ("/v1/rerank", b'{"query": "a", "documents": ["b", {"more": [1, 2], "text": "TEXT"}]}', "documents[1].text"),
        ("/v1/ranking", b'{"query": {"text": "TEXT"}, "passages": [{"text": "b"}]}', "query.text"),
        ("/score", b'{"text_1": "a", "text_2": ["b", "TEXT"]}', "text_2[1]"),
        ("/embed", b'{"inputs": ["\\\\ud800", "TEXT"]}', "inputs[1]"),
        ("/predict", b'{"inputs": [["a", "b"], ["c", "TEXT"]]}', "inputs[1][1]"),
        ("/similarity", b'{"inputs": {"source_sentence": "a", "sentences": ["b", "TEXT"]}}', "inputs.sentences[1]"),
    ],
)
async def test_a_text_that_is_no_unicode_is_named_with_its_place(path: str, body: bytes, place: str) -> None:
    surrogates = (b"b \\ud800", b"\\ud800 \\udc00", b"\\udc00 b", b"\\ud83d\\ude00\\ud83d", b"\\\\\\ud800")
    faults = dict.fromkeys(surrogates, "half of a surrogate pair, which is no text")
    for text, fault in {**faults, b"\xed\xa0\x80": "bytes that are no UTF-8"}.items():
        reply = await api_of().ask(path, body.replace(b"TEXT", text))
        message = f"{place} has {fault}"
        assert (reply.status, reply.error) == (400, (place if "param" in str(reply.json) else message, message))

"""Bad input of the HTTP API: refused in the words of each shape, and before a body is read where that is possible."""

import json

import pytest
from asgi import JSON, HttpApi

EMBED = "/v1/embeddings"


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        (EMBED, b"", 400, "the body is no JSON"),
        (EMBED, b"\xff\xfe", 400, "the body is no JSON"),
        (EMBED, b'{"input": "\\ud800"}', 400, "input has half of a surrogate pair"),
        (EMBED, b"[" * 100_000, 400, "Expected `object`"),
        (EMBED, b'{"input": "a", "deep": ' + b"[" * 50_000, 400, "nested too deeply"),
        (EMBED, b"[]", 400, "Expected `object`"),
        (EMBED, {}, 400, "input is missing"),
        (EMBED, {"input": []}, 400, "input is empty"),
        (EMBED, {"input": [[]]}, 400, "input[0] has no ids"),
        (EMBED, {"input": ["a", 1]}, 400, "input[1] is of another kind"),
        (EMBED, {"input": [[1, "a"]]}, 400, "input[0][1]: Expected `int`"),
        (EMBED, {"input": [1, -1]}, 400, "input[1]: Expected `int` >= 0"),
        (EMBED, {"input": [2**31]}, 400, "input[0]: Expected `int` <="),
        (EMBED, {"input": [[999]]}, 400, "input[0]"),
        (EMBED, {"input": None}, 400, "input is missing"),
        (EMBED, {"input": ["a", None]}, 400, "input[1]: Expected"),
        (EMBED, b"\xfe\xff\0{\0}", 400, "the body is no JSON: by its byte order mark it is UTF-16"),
        (EMBED, {"input": "a", "dimensions": 0}, 400, "dimensions: Expected `int` >= 1"),
        (EMBED, {"input": "a", "dimensions": 9}, 400, "dimensions is 9"),
        (EMBED, {"input": "a", "encoding_format": "hex"}, 400, "encoding_format is 'hex', there are base64, float"),
        (EMBED, {"input": "a", "input_type": "poem"}, 400, "input_type is 'poem'"),
        (EMBED, {"input": "a b c d e f g h i j k"}, 400, "input has 13 tokens, the limit is 10"),
        (EMBED, {"input": ["a", "a b c d e f g h i j k"]}, 400, "input[1] has 13 tokens"),
        (EMBED, {"input": "a", "model": "other"}, 404, "no model is called"),
        ("/v2/embed", {"texts": []}, 400, "texts is empty"),
        (
            "/v2/embed",
            {"texts": ["a"], "embedding_types": ["float3"]},
            400,
            "embedding_types[0] is 'float3', there are base64, binary",
        ),
        ("/v2/embed", {"texts": ["a"], "output_dimension": 9}, 400, "output_dimension is 9"),
        ("/v2/rerank", {"query": "a", "documents": []}, 400, "documents is empty"),
        ("/v2/rerank", {"query": "a", "documents": ["b", {"title": "c"}]}, 400, "documents[1].text is missing"),
        ("/v2/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, 400, "top_n: Expected `int` >= 0"),
        ("/rerank", {"query": "a", "texts": []}, 422, "texts is empty"),
        ("/rerank", {"query": "a"}, 422, "texts is missing"),
        ("/embed", b"{", 400, "the body is no JSON"),
        ("/embed", {"inputs": ["a", ""]}, 422, "inputs[1] is empty"),
        ("/embed", {"inputs": "a b c d e f g h i j k"}, 413, "inputs has 13 tokens"),
        ("/embed_sparse", {"inputs": "a"}, 424, "the model has no SPARSE output"),
        ("/predict", {"inputs": "a"}, 424, "the model is not for CLASSIFY"),
        ("/predict", {"inputs": [["a", "b", "c"]]}, 422, "inputs[0] has 3 entries"),
        ("/predict", {"inputs": [["a"], ["b", "c"]]}, 422, "inputs[1] has 2 entries"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, 422, "inputs.sentences is empty"),
        ("/tokenize", {"inputs": []}, 422, "inputs is empty"),
        ("/decode", {"ids": []}, 422, "ids is empty"),
        ("/decode", {"ids": [[99999]]}, 422, "ids[0]"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, 400, "pairs need as many text_2 as text_1"),
        ("/score", {"text_1": [], "text_2": ["c"]}, 400, "text_1 is empty"),
        ("/pooling", {"input": "a", "task": "sing"}, 400, "task is 'sing', there are classify, embed"),
        ("/classify", {"input": []}, 400, "input is empty"),
    ],
)
async def test_bad_input_is_told_in_the_words_of_the_shape(
    api: HttpApi, path: str, body: object, status: int, told: str
) -> None:
    """The field by the name that this shape has for it."""
    reply = await api.ask(path, body)
    assert reply.status == status, reply.body
    assert told in message_of(path, reply.json)
    assert reply.headers["content-type"] == "application/json"


def message_of(path: str, told: dict[str, object]) -> str:
    """And that nothing else of the shape is missing."""
    if path.startswith("/v2/"):
        assert set(told) == {"message"}
        return str(told["message"])
    error = told["error"]
    if isinstance(error, dict):
        assert set(error) == {"message", "type", "param", "code"}
        return str(error["message"])
    assert set(told) == {"error", "error_type"}
    return str(error)


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("/nothing", "GET", (), 404),
        ("/v1/embeddings/x", "POST", JSON, 404),
        ("/v1/models/other", "GET", (), 404),
        (EMBED, "GET", (), 405),
        (EMBED, "DELETE", (), 405),
        ("/health", "POST", (), 405),
        (EMBED, "POST", (("content-type", "text/plain"),), 415),
        (EMBED, "POST", (*JSON, ("content-encoding", "gzip")), 415),
        (EMBED, "POST", (*JSON, ("content-length", "70000000000")), 413),
        (EMBED, "POST", (*JSON, ("selvage-timeout", "soon")), 400),
        (EMBED, "POST", (*JSON, ("selvage-timeout", "nan")), 400),
        (EMBED, "POST", (*JSON, ("selvage-priority", "soon")), 400),
    ],
)
async def test_what_is_refused_before_the_body_is_read(
    api: HttpApi, path: str, method: str, headers: tuple[tuple[str, str], ...], status: int
) -> None:
    """So the body could be anything."""
    told = await api.ask(path, b"{}", method=method, headers=headers)
    assert told.status == status, told.body
    assert ("allow" in told.headers) == (status == 405)
    if path.startswith("/v1/"):
        assert told.json["error"]["message"]


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
    api: HttpApi, path: str, body: dict[str, object], field: str, kin: str
) -> None:
    """It is told with what the path has of its kind. Null or empty it asks for nothing."""
    reply = await api.ask(path, body)
    error = reply.json.get("error", reply.json)
    message = error if isinstance(error, str) else error["message"]
    assert reply.status == (422 if "error_type" in reply.json else 400)
    told, _, known = message.partition(" would change the answer, and is no field of this path, which has ")
    assert told == field
    assert kin in known.split(", ")
    outer, _, inner = field.rpartition(".")
    assert "chat_template" not in known  # it is refused too
    for nothing in (None, {}, [], ""):
        absent = await api.ask(path, body | ({outer: {inner: nothing}} if outer else {inner: nothing}))
        assert field.encode() not in absent.body
    if not outer:
        spaced = json.dumps({**body, field: None}).replace("null", "{ }").encode()
        assert field.encode() not in (await api.ask(path, spaced)).body


@pytest.mark.parametrize(
    "name", ["metadata", "topic", "stop", "dimmed", "taskId", "prompt_cache_key", "extra", "top_logprobs", "tags"]
)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "a"}),
        ("/v2/rerank", {"query": "a", "documents": [{"text": "b", "prompt": "c"}]}),
        ("/embed", {"inputs": "a"}),
    ],
)
async def test_other_unknown_fields_are_ignored(api: HttpApi, path: str, body: dict[str, object], name: str) -> None:
    """Whatever they hold, since clients send fields of their own."""
    assert (await api.ask(path, body | {name: {"top_k": 3}})).status == 200


@pytest.mark.parametrize(
    "text", [b"b \\ud800", b"\\ud800 \\udc00", b"\\udc00 b", b"\\ud83d\\ude00\\ud83d", b"\\\\\\ud800", b"\xed\xa0\x80"]
)
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
async def test_a_text_that_is_no_unicode_is_named_with_its_place(
    api: HttpApi, path: str, body: bytes, place: str, text: bytes
) -> None:
    reply = await api.ask(path, body.replace(b"TEXT", text))
    fault = "bytes that are no UTF-8" if text[0] > 127 else "half of a surrogate pair, which is no text"
    error = reply.json.get("error", reply.json)
    assert (reply.status, error["message"] if isinstance(error, dict) and "message" in error else error) == (
        400,
        f"{place} has {fault}",
    )
    if "param" in error:
        assert error["param"] == place

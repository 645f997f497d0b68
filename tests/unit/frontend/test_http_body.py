"""Bodies of the HTTP API: what stands for absence, which numbers are integers, marks, and fields refused by name."""

import json
import tracemalloc
from typing import Annotated, Any

import msgspec
import pytest
from asgi import HttpApi

from frontend_service.api.http.fields import Body, refusing
from shared.errors import InvalidInput


class Part(msgspec.Struct):
    text: str = "none"


class Example(msgspec.Struct, kw_only=True):
    needed: str
    name: str = "ours"
    count: int | None = None
    ids: list[str | int | list[int]] = []
    parts: list[Part] = []
    records: list[str | dict[str, Any]] = []
    raw: msgspec.Raw = msgspec.Raw()
    picture: Annotated[Any, refusing("there is no model of images", {}, "none")] = None


def read(**fields: object) -> Example:
    return Body(Example).read(json.dumps(fields).encode())


def refused(raw: bytes) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        Body(Example).read(raw)
    return caught.value


def test_a_needed_field_that_is_null_is_missing() -> None:
    error = refused(b'{"needed": null}')
    assert (error.message, error.field) == ("needed is missing", "needed")


def test_null_in_a_list_is_no_absence() -> None:
    assert refused(b'{"needed": "a", "ids": [1, null]}').field == "ids[1]"


@pytest.mark.parametrize("number", [b"512.0", b"5.12e2", b"512"])
def test_whole_floats_are_integers(number: bytes) -> None:
    raw = b'{"needed": "a", "count": NUMBER, "ids": [NUMBER, [NUMBER]]}'.replace(b"NUMBER", number)
    found = Body(Example).read(raw)
    assert (found.count, found.ids, type(found.count)) == (512, [512, [512]], int)


@pytest.mark.parametrize("number", [b"512.5", b'"512"', b"1e400", b"1e30", b"true", b"[512]"])
def test_nothing_else_is_an_integer(number: bytes) -> None:
    assert refused(b'{"needed": "a", "count": %b}' % number).field == "count"


def test_what_is_the_callers_own_stays_as_it_was_sent() -> None:
    """That is what is read later, and objects whose fields nobody here knows."""
    raw = b'{"needed": "a", "count": 2.0, "raw": [1.0, {"x": null}], "records": ["b", {"size": 1.0, "url": null}]}'
    found = Body(Example).read(raw)
    assert found.count == 2
    assert bytes(found.raw) == b'[1.0, {"x": null}]'
    assert json.dumps(found.records) == '["b", {"size": 1.0, "url": null}]'


@pytest.mark.parametrize(
    ("value", "place"), [(b"NUMBER", "ids"), (b"[1, NUMBER]", "ids[1]"), (b'{"x": NUMBER}', "ids[...]")]
)
def test_a_number_that_cannot_be_read_is_named_with_its_place(value: bytes, place: str) -> None:
    """Each field is read by itself where something is mended."""
    error = refused(b'{"needed": "a", "count": 2.0, "ids": ' + value.replace(b"NUMBER", b"9" * 5000) + b"}")
    assert (error.message, error.field) == (f"{place}: Integer value out of range", place)


def test_a_body_that_is_mended_takes_no_more_memory_than_another() -> None:
    """Its texts are made once: 4 bytes a letter, where one letter needs them."""
    text = b'"' + "\N{GRINNING FACE}".encode() + b"a" * 2**20 + b'"'

    def peak(count: bytes) -> int:
        raw = b'{"needed": ' + text + b', "count": ' + count + b"}"
        tracemalloc.start()
        try:
            Body(Example).read(raw)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(b"4.0") < 1.1 * peak(b"4")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": [1.0, 2.0], "dimensions": 4.0, "model": None}),
        ("/v2/embed", {"texts": ["a"], "output_dimension": 4.0, "model": None}),
        ("/v2/rerank", {"query": "a", "documents": ["b"], "top_n": 1.0, "model": None}),
        ("/rerank", {"query": "a", "texts": ["b"], "model": None}),
        ("/embed", {"inputs": "a", "dimensions": 4.0, "model": None}),
        ("/decode", {"ids": [[1.0, 2.0]], "model": None}),
        ("/tokenize", {"inputs": "a", "model": None}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "model": None}),
        ("/", {"inputs": "a", "model": None}),
        ("/score", {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 8.0, "model": None}),
    ],
)
async def test_every_path_reads_bodies_so(api: HttpApi, path: str, body: object) -> None:
    told = await api.ask(path, b"\xef\xbb\xbf" + json.dumps(body).encode())
    assert told.status == 200, told.body


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_other_encodings_are_named(encoding: str) -> None:
    message = refused("\ufeff{}".encode(encoding)).message
    assert message == f"the body is no JSON: by its byte order mark it is {encoding[:6].upper()}, and JSON is UTF-8"


@pytest.mark.parametrize("value", ["a.png", {"url": "x"}, 0, False, []])
def test_a_refused_field_is_named_with_its_reason(value: object) -> None:
    """The reason is told even where another field is missing."""
    for raw in ({"needed": "a", "picture": value}, {"picture": value}, {"needed": "a", "count": 2.0, "picture": value}):
        error = refused(json.dumps(raw).encode())
        assert (error.message, error.field) == ("picture is refused: there is no model of images", "picture")


@pytest.mark.parametrize("value", [None, {}, "none"])
def test_a_refused_field_that_asks_for_nothing_is_accepted(value: object) -> None:
    assert read(needed="a", picture=value).needed == "a"


@pytest.mark.parametrize("deep", [995, 50_000])
def test_deep_nesting_beside_what_is_mended_is_told(deep: int) -> None:
    raw = b'{"needed": "a", "count": 1.0, "x": ' + b"[" * deep + b"]" * deep + b"}"
    assert refused(raw).message == "the body is nested too deeply"


def test_bodies_that_are_no_objects() -> None:
    for raw in (b"[]", b"null", b"7", b"7.0", b'"a"'):
        assert "Expected `object`" in refused(raw).message

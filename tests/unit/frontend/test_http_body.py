"""Bodies of the HTTP API: what stands for absence, which numbers are integers, marks, and fields refused by name."""

import json
import tracemalloc
from typing import Annotated, Any

import msgspec
import pytest
from asgi import api_of

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


@pytest.mark.parametrize("number", [b"512.0", b"5.12e2", b"512"])
def test_whole_floats_are_integers(number: bytes) -> None:
    raw = b'{"needed": "a", "count": NUMBER, "ids": [NUMBER, [NUMBER]]}'.replace(b"NUMBER", number)
    body = Body(Example).read(raw)
    assert (body.count, body.ids, type(body.count)) == (512, [512, [512]], int)


def test_what_is_the_callers_own_stays_as_it_was_sent() -> None:
    """That is what is read later, and objects whose fields nobody here knows."""
    raw = b'{"needed": "a", "count": 2.0, "raw": [1.0, {"x": null}], "records": ["b", {"size": 1.0, "url": null}]}'
    body = Body(Example).read(raw)
    assert body.count == 2
    assert bytes(body.raw) == b'[1.0, {"x": null}]'
    assert json.dumps(body.records) == '["b", {"size": 1.0, "url": null}]'


@pytest.mark.parametrize(
    ("raw", "message", "field"),
    [
        (b'{"needed": null}', "needed is missing", "needed"),
        (b'{"needed": "a", "ids": [1, null]}', "", "ids[1]"),
        *(
            (b'{"needed": "a", "count": %b}' % number, "", "count")
            for number in (b"512.5", b'"512"', b"1e400", b"1e30", b"true", b"[512]")
        ),
        *(  # each field is read by itself where something is mended
            (b'{"needed": "a", "count": 2.0, "ids": ' + value % (b"9" * 5000), f"{place}: Integer value out", place)
            for value, place in ((b"%b}", "ids"), (b"[1, %b]}", "ids[1]"), (b'{"x": %b}}', "ids[...]"))
        ),
        *(
            (b'{"needed": "a", "count": 1.0, "x": ' + b"[" * deep + b"]" * deep + b"}", "is nested too deeply", "")
            for deep in (995, 50_000)
        ),
        *(
            ("\ufeff{}".encode(f"utf-{bits}-{end}"), f"it is UTF-{bits}, and JSON is UTF-8", "")
            for bits in (16, 32)
            for end in ("le", "be")
        ),
        *((raw, "Expected `object`", "") for raw in (b"[]", b"null", b"7", b"7.0", b'"a"')),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_cannot_be_read_is_named_with_its_place(raw: bytes, message: str, field: str) -> None:
    error = refused(raw)
    assert message in error.message
    assert error.field == field


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
async def test_every_path_reads_bodies_so(path: str, body: object) -> None:
    reply = await api_of().ask(path, b"\xef\xbb\xbf" + json.dumps(body).encode())
    assert reply.status == 200, reply.body


@pytest.mark.parametrize("value", ["a.png", {"url": "x"}, 0, False, []])
def test_a_refused_field_is_named_with_its_reason(value: object) -> None:
    """The reason is told even where another field is missing."""
    for raw in ({"needed": "a", "picture": value}, {"picture": value}, {"needed": "a", "count": 2.0, "picture": value}):
        error = refused(json.dumps(raw).encode())
        assert (error.message, error.field) == ("picture is refused: there is no model of images", "picture")


@pytest.mark.parametrize("value", [None, {}, "none"])
def test_a_refused_field_that_asks_for_nothing_is_accepted(value: object) -> None:
    assert read(needed="a", picture=value).needed == "a"

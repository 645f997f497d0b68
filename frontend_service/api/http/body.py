"""The body of a request: JSON to a struct, by msgspec."""

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from frontend_service.api.http.choices import choices
from frontend_service.api.http.leniency import MENDABLE, LenientFields, without_mark
from frontend_service.api.http.refused_fields import RefusedFields, UnknownFields
from shared.errors import InvalidInput, LimitExceeded

T = TypeVar("T", bound=msgspec.Struct)
LETTERS = 300
"""Longest message of an error, in letters: msgspec's messages may quote the caller."""
PLACE = re.compile(r"(?P<fault>.*) - at `\$(?:\.)?(?P<path>.*)`", re.DOTALL)
ODD_WORD = re.compile("Invalid enum value (.{1,66}).*", re.DOTALL)
MISSING = re.compile(r"Object missing required field `(\w+)`")
MOST_ENTRIES, MOST_LISTS = 1_000_000, 100_000
"""Most entries, and most lists and objects, of a body."""
TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[,\[{]', re.DOTALL)
"""A string, or the beginning of an entry. An open string ends with the body, so that no byte is matched twice."""
LARGEST = 2**31 - 1
Count = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
Bound = Annotated[int, msgspec.Meta(ge=1)]
"""An upper bound, which may be larger than any count that it limits."""
Id = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Top = Annotated[int, msgspec.Meta(ge=0, description="How many to tell; 0: all.")]
FILLED = msgspec.Meta(extra_json_schema={"minItems": 1})
"""Metadata of lists that may not be empty, for the OpenAPI document. They are checked where requests are read."""
_SOME_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": LARGEST}}


def of_one_kind(text: dict[str, Any]) -> msgspec.Meta:
    """The schema of inputs that are all of one kind, beyond Python's types. `text`: the schema of one text."""
    kinds = [text, _SOME_IDS]
    return msgspec.Meta(
        description="A text, a list of texts, the token ids of a text, or a list of such lists.",
        extra_json_schema={"oneOf": kinds + [{"type": "array", "minItems": 1, "items": schema} for schema in kinds]},
    )


Inputs = Annotated[str | list[str | Id | list[Id]], of_one_kind({"type": "string"})]
FilledInputs = Annotated[str | list[str | Id | list[Id]], of_one_kind({"type": "string", "minLength": 1})]
Texts = Annotated[str | Annotated[list[str], FILLED], msgspec.Meta(description="A text, or a list of texts.")]


class Body(Generic[T]):
    """Reads the body that a route takes. Unknown fields are ignored, since clients send fields of their own.

    `null` means that a field is absent, and a whole number is an integer however it is written; see `leniency`. Fields
    that the original API has and this one cannot honour are refused by name, and so are unknown ones that would change
    the answer; see `refused_fields`.
    """

    def __init__(self, kind: type[T], *, whole: bool = True) -> None:
        """`whole`: the struct has all fields of the route, so others are unknown."""
        self.kind = kind
        self._decoder = msgspec.json.Decoder(kind)
        self._lenient = LenientFields(kind)
        self._refusals = RefusedFields(kind)
        self._unknown = UnknownFields(kind) if whole else None

    def read(self, raw: bytes) -> T:
        """Reads a body. Raises InvalidInput, with the place in the body as its field, and LimitExceeded."""
        _check_entries(raw)
        try:
            raw = without_mark(raw)
            return self._read(raw)
        except msgspec.ValidationError as error:
            raise self._invalid_input(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            fault, place = _unreadable_text(raw) or (f"the body is no JSON: {str(error)[:LETTERS]}", "")
            raise InvalidJson(fault, field=place) from None
        except RecursionError:
            raise InvalidJson("the body is nested too deeply") from None

    def _read(self, raw: bytes) -> T:
        """Reads the body strictly, and where that fails, once more leniently."""
        try:
            body = self._decoder.decode(raw)
            self._refusals.check_struct(body)
        except msgspec.ValidationError as error:
            if not MENDABLE.search(str(error)):
                raise
            content = self._lenient.content(raw)
            self._refusals.check(content)  # a refusal says more than the missing field that it explains
            body = msgspec.convert(content, self.kind)
        if self._unknown is not None:
            self._unknown.check(raw)
        return body

    def _invalid_input(self, message: str) -> InvalidInput:
        """An error with msgspec's message, or a clearer one where that does not name the field or its choices."""
        place = PLACE.fullmatch(message)
        fault, path = (place["fault"], place["path"]) if place else (message, "")
        missing, odd = MISSING.match(fault), ODD_WORD.match(fault)
        if missing:
            field = f"{path}.{missing[1]}".lstrip(".")
            return InvalidInput(f"{field} is missing", field=field)
        text = f"{path}: {fault}" if path else fault
        if odd:
            text = f"{path} is {odd[1]}, there are {', '.join(choices(self.kind, path))}"
        return InvalidInput(text[:LETTERS], field=path[:LETTERS])


def _check_entries(raw: bytes) -> None:
    """Raises LimitExceeded before objects are made of too many entries: a few bytes of JSON may take a hundred."""
    if raw.count(b",") <= MOST_ENTRIES and raw.count(b"[") + raw.count(b"{") <= MOST_LISTS:
        return
    lists = strings = entries = 0
    for token in TOKEN.finditer(raw):
        first = raw[token.start()]
        strings += first == ord('"')
        entries += first == ord(",")
        lists += first in b"[{"
        if entries > MOST_ENTRIES or strings > 2 * MOST_ENTRIES:
            raise LimitExceeded(f"the body has more than {MOST_ENTRIES} entries")
        if lists > MOST_LISTS:
            raise LimitExceeded(f"the body has more than {MOST_LISTS} lists and objects")


def _unreadable_text(raw: bytes) -> tuple[str, str] | None:
    """The fault and the place of the first text that is no Unicode, such as `input[3]`; None where there is none."""
    try:
        written, fault = raw.decode(), "half of a surrogate pair, which is no text"
    except UnicodeDecodeError:
        written, fault = raw.decode(errors="surrogateescape"), "bytes that are no UTF-8"
    try:
        content = json.loads(written)  # Python's own reader takes what msgspec refuses
    except (ValueError, RecursionError):
        return None
    for place, text in _texts_in(content):
        try:
            text.encode()
        except UnicodeEncodeError:
            return f"{place or 'the body'} has {fault}", place
    return None


def _texts_in(content: Any) -> Iterator[tuple[str, str]]:
    """All texts of parsed JSON, each with its place in it; a name is a text at the place of its object."""
    levels: list[tuple[str, Iterator[tuple[str, Any]]]] = [("", iter([("", content)]))]
    while levels:
        outer, entries = levels[-1]
        for step, entry in entries:
            place = f"{outer}{step}".lstrip(".")[:LETTERS]
            if isinstance(entry, str):
                yield place, entry
            elif isinstance(entry, list):
                levels.append((place, ((f"[{number}]", inner) for number, inner in enumerate(entry))))
                break
            elif isinstance(entry, dict):
                yield from ((place, name) for name in entry)
                levels.append((place, ((f".{name}", inner) for name, inner in entry.items())))
                break
        else:
            levels.pop()


class InvalidJson(InvalidInput):
    """The body is no JSON at all."""


def texts_of(texts: str | list[str]) -> tuple[str, ...]:
    """The texts of a field that takes one text or a list."""
    return (texts,) if isinstance(texts, str) else tuple(texts)


def inputs_of(
    inputs: str | list[str | int | list[int]], field: str
) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Texts and lists of token ids, one of which is empty. Raises InvalidInput where inputs are mixed or empty."""
    if isinstance(inputs, str):
        return (inputs,), ()
    if not inputs:
        raise InvalidInput(f"{field} is empty", field=field)
    kind = type(inputs[0])
    for place, entry in enumerate(inputs):
        if type(entry) is not kind:
            raise InvalidInput(f"{field}[{place}] is of another kind than {field}[0]", field=f"{field}[{place}]")
    if kind is str:
        return tuple(inputs), ()  # type: ignore[arg-type]
    return (), (tuple(inputs),) if kind is int else tuple(map(tuple, inputs))  # type: ignore[arg-type]

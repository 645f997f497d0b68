"""The body of a request: JSON to a struct. msgspec."""

import re
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from frontend_service.api.http.choices import choices
from frontend_service.api.http.leniency import MENDABLE, LenientFields, without_mark
from frontend_service.api.http.refused_fields import RefusedFields
from shared.errors import InvalidInput, LimitExceeded

T = TypeVar("T", bound=msgspec.Struct)
LETTERS = 300
"""Letters of a message that is told: msgspec's may quote the caller."""
AT = re.compile(r"(?P<what>.*) - at `\$(?:\.)?(?P<path>.*)`", re.DOTALL)
ODD_WORD = re.compile("Invalid enum value (.{1,66}).*", re.DOTALL)
MISSING = re.compile(r"Object missing required field `(\w+)`")
MOST_ENTRIES, MOST_LISTS = 1_000_000, 100_000
"""Entries, and lists and objects, that a body may have."""
TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[,\[{]', re.DOTALL)
"""A string, which ends with the body if not before, so that nothing is looked at twice; or what begins an entry."""
LARGEST = 2**31 - 1
Count = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
Bound = Annotated[int, msgspec.Meta(ge=1)]
"""A number of things at most. It may be above what there can be, however large."""
Id = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
FILLED = msgspec.Meta(extra_json_schema={"minItems": 1})
"""Metadata of lists that may not be empty, for the document; requests are checked where they are made."""
_SOME_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": LARGEST}}


def _of_one_kind(text: dict[str, Any]) -> msgspec.Meta:
    """The schema of what `inputs_of` takes, which Python's types cannot say. `text`: the schema of one text."""
    kinds = [text, _SOME_IDS]
    return msgspec.Meta(
        description="A text, a list of texts, the token ids of a text, or a list of such lists.",
        extra_json_schema={"oneOf": kinds + [{"type": "array", "minItems": 1, "items": schema} for schema in kinds]},
    )


Inputs = Annotated[str | list[str | Id | list[Id]], _of_one_kind({"type": "string"})]
FilledInputs = Annotated[str | list[str | Id | list[Id]], _of_one_kind({"type": "string", "minLength": 1})]
Texts = Annotated[str | Annotated[list[str], FILLED], msgspec.Meta(description="A text, or a list of texts.")]


class Body(Generic[T]):
    """The body that a route takes. Fields that it does not know are ignored, since clients send some of their own.

    `null` is absence, and a whole number is an integer however it is written; see `leniency`. What the original knows
    and nothing here can honour is refused by name; see `refusing`.
    """

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        self._decoder = msgspec.json.Decoder(kind)
        self._mending = LenientFields(kind)
        self._refusals = RefusedFields(kind)

    def read(self, raw: bytes) -> T:
        """Raises InvalidInput, with the place in the body as its field, and LimitExceeded."""
        _check_entries(raw)
        try:
            raw = without_mark(raw)
            return self._read(raw)
        except msgspec.ValidationError as error:
            raise self._wrong(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidJson(f"the body is no JSON: {str(error)[:LETTERS]}") from None
        except RecursionError:
            raise InvalidJson("the body is nested too deeply") from None

    def _read(self, raw: bytes) -> T:
        """Reads the body as it is, and where that fails, once more as it is mended."""
        try:
            body = self._decoder.decode(raw)
        except msgspec.ValidationError as error:
            if not MENDABLE.search(str(error)):
                raise
            content = self._mending.content(raw)
            self._refusals.check(content)  # what is refused says more than what is missing because of it
            return msgspec.convert(content, self.kind)
        self._refusals.check_struct(body)
        return body

    def _wrong(self, message: str) -> InvalidInput:
        """An error with msgspec's words, or with our own where those do not name the field or what it may be."""
        at = AT.fullmatch(message)
        what, path = (at["what"], at["path"]) if at else (message, "")
        missing, odd = MISSING.match(what), ODD_WORD.match(what)
        if missing:
            field = f"{path}.{missing[1]}".lstrip(".")
            return InvalidInput(f"{field} is missing", field=field)
        told = f"{path}: {what}" if path else what
        if odd:
            told = f"{path} is {odd[1]}, there are {', '.join(choices(self.kind, path))}"
        return InvalidInput(told[:LETTERS], field=path[:LETTERS])


def _check_entries(raw: bytes) -> None:
    """Raises LimitExceeded before objects are made: a few bytes of JSON may become a hundred in memory."""
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


class InvalidJson(InvalidInput):
    """The body cannot be read at all."""


def texts_of(given: str | list[str]) -> tuple[str, ...]:
    """Texts of a field that takes one or many."""
    return (given,) if isinstance(given, str) else tuple(given)


def inputs_of(
    given: str | list[str | int | list[int]], field: str
) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Texts, or lists of token ids; the other one is empty. Raises InvalidInput where they are mixed or none."""
    if isinstance(given, str):
        return (given,), ()
    if not given:
        raise InvalidInput(f"{field} is empty", field=field)
    kind = type(given[0])
    for place, entry in enumerate(given):
        if type(entry) is not kind:
            raise InvalidInput(f"{field}[{place}] is of another kind than {field}[0]", field=f"{field}[{place}]")
    if kind is str:
        return tuple(given), ()  # type: ignore[arg-type]
    return (), (tuple(given),) if kind is int else tuple(map(tuple, given))  # type: ignore[arg-type]

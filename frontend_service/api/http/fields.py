"""The body of a request: JSON to the struct that a route takes, by msgspec.

Strictly first, then leniently: `null` for absent fields, whole floats, a byte order mark. Fields that this API cannot
honour are refused by name, unless their value asks for nothing: those that the original API has are in the structs of
requests; of all others a name decides, and one that does not say that it changes the answer is ignored, since clients
send fields of their own.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar, get_args

import msgspec
from msgspec import inspect

from shared.errors import InvalidInput, LimitExceeded, clip

MENDABLE = re.compile("got `(null|float)`|missing required field")
"""Messages of msgspec about bodies that may be right when read leniently, or that may have refused fields."""
MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
LARGEST_WHOLE = 2**63
"""Whole floats from here on stay floats: no field takes such integers."""
UTF_8_MARK = b"\xef\xbb\xbf"
OTHER_MARKS = ((b"\xff\xfe\0\0", 32), (b"\0\0\xfe\xff", 32), (b"\xff\xfe", 16), (b"\xfe\xff", 16))
"""Byte order marks of UTF-32 and UTF-16 (Unicode 16.0, section 23.8); the longer ones first, since both begin alike."""


def without_mark(raw: bytes) -> bytes:
    """Skips UTF-8's byte order mark, as RFC 8259 (8.1) allows. Raises DecodeError for other encodings."""
    if raw.startswith(UTF_8_MARK):
        return raw[len(UTF_8_MARK) :]
    for mark, bits in OTHER_MARKS:
        if raw.startswith(mark):
            raise msgspec.DecodeError(f"by its byte order mark it is UTF-{bits}, and JSON is UTF-8")
    return raw


class LenientFields:
    """Reads the fields of a struct leniently, except those of any content: these stay as they were sent."""

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        description = inspect.type_info(kind)
        assert isinstance(description, inspect.StructType)
        self._types = {field.encode_name: field.type for field in description.fields}
        self._free_fields = {name for name, type_ in self._types.items() if _holds(type_, inspect.AnyType)}

    def content(self, raw: bytes) -> dict[str, Any]:
        """Returns the fields of a body for `msgspec.convert`, without those that are null, whole floats as integers.

        JSON has one kind of number, so 512.0 is 512. In a list null stays null. Unknown fields are not parsed, since
        they may be large. Raises DecodeError, ValidationError, RecursionError.
        """
        members = MEMBERS.decode(raw)
        return {
            name: self._read(name, member)
            for name, member in members.items()
            if name in self._types and bytes(memoryview(member)[:5]) != b"null"
        }

    def _read(self, name: str, member: msgspec.Raw) -> Any:
        if isinstance(self._types[name], inspect.RawType):
            return member
        try:
            content = msgspec.json.decode(member)
        except msgspec.ValidationError as error:  # its message names the place within the member
            message, _, place = str(error).partition(" - at `$")
            raise msgspec.ValidationError(f"{message} - at `$.{name}{place or '`'}") from None
        return content if name in self._free_fields else _plain(content)


def _holds(type_: inspect.Type, kind: type[inspect.Type]) -> bool:
    """Tells whether a type or one of its alternatives, entries or values is of a kind. Does not look into structs."""
    inner: tuple[inspect.Type, ...] = ()
    if isinstance(type_, inspect.Metadata):
        inner = (type_.type,)
    elif isinstance(type_, inspect.UnionType):
        inner = type_.types
    elif isinstance(type_, inspect.ListType):
        inner = (type_.item_type,)
    elif isinstance(type_, inspect.DictType):
        inner = (type_.value_type,)
    return isinstance(type_, kind) or any(_holds(alternative, kind) for alternative in inner)


def _plain(content: Any) -> Any:
    """Removes nulls from objects and makes whole floats integers, in place; returns the content."""
    if isinstance(content, dict):
        for key in [key for key, value in content.items() if value is None]:
            del content[key]
        for key, value in content.items():
            content[key] = _plain(value)
    elif isinstance(content, list):
        for place, value in enumerate(content):
            content[place] = _plain(value)
    elif isinstance(content, float) and content.is_integer() and abs(content) < LARGEST_WHOLE:
        return int(content)
    return content


STEP = re.compile(r"\[|[A-Za-z_]\w*")
"""A step of a path: a field's name, or an entry of a list."""


def choices(kind: type[msgspec.Struct], path: str) -> list[str]:
    """Words that a struct allows at a `path` of msgspec's form, such as `parameters.words[2]`; none where all are."""
    types = list(_alternatives(inspect.type_info(kind)))
    for step in STEP.findall(path):
        types = [choice for type_ in types for inner in _inner(type_, step) for choice in _alternatives(inner)]
    literals = [type_.values for type_ in types if isinstance(type_, inspect.LiteralType)]
    return [word for words in literals for word in words if isinstance(word, str)]


def _alternatives(type_: inspect.Type) -> Iterator[inspect.Type]:
    """The types of a union, or the type itself."""
    if isinstance(type_, inspect.Metadata):
        yield from _alternatives(type_.type)
    elif isinstance(type_, inspect.UnionType):
        for alternative in type_.types:
            yield from _alternatives(alternative)
    else:
        yield type_


def _inner(type_: inspect.Type, step: str) -> list[inspect.Type]:
    """The types of a list's entries or of a struct's field, as the step says."""
    if isinstance(type_, inspect.ListType) and step == "[":
        return [type_.item_type]
    if isinstance(type_, inspect.StructType):
        return [field.type for field in type_.fields if field.encode_name == step]
    return []


CHANGES_ANSWER = re.compile(
    r"(^|_)(activation|chunking|dims?|dimensions?|dtype|instruct(ions?)?|normali[sz](e|ed|ation)|parameters|pool(ing|ed)?"
    r"|precision|prefix|quanti[sz](e|ed|ation)|softmax|suffix|template|threshold|top_?[kn]|truncat(e|ed|ion))(_|$)"
    r"|(^|_)(prompts?(_name)?|top)$|^(task|(input|task)_type)$|^max_(\w+_)?(length|tokens)(_|$)"
)
"""Names, in small letters with underscores, of fields that change an answer."""
NOTHING = re.compile(rb'null|""|{\s*}|\[\s*\]')
"""Pattern of values that ask for nothing."""
WORD = re.compile("(?<=[a-z0-9])(?=[A-Z])|-")
"""A place where another word begins in a name such as `topK` or `top-k`."""
KEY = "refused"
"""The key of the refusal in a field's metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The reason why a field is refused, and its values that ask for nothing, the default among them."""

    why: str
    harmless: tuple[Any, ...]


def refusing(why: str, *harmless: Any) -> msgspec.Meta:
    """Metadata of a refused field of type Any. `why` says what to do instead; null and `harmless` are accepted."""
    accepted = "".join(f" {msgspec.json.encode(value).decode()} is accepted." for value in harmless)
    return msgspec.Meta(
        description=f"Refused: {why}.{accepted}", extra={KEY: Refusal(why=why, harmless=(None, *harmless))}
    )


def _refusals_of(kind: type[msgspec.Struct]) -> dict[str, Refusal]:
    """The refused fields of a struct."""
    refusals: dict[str, Refusal] = {}
    for field in msgspec.structs.fields(kind):
        metas = [meta for meta in get_args(field.type) if isinstance(meta, msgspec.Meta)]
        for refusal in [meta.extra[KEY] for meta in metas if meta.extra and KEY in meta.extra]:
            refusals[field.encode_name] = refusal
    return refusals


def _fields_of(type_: inspect.Type) -> dict[str, Any] | None:
    """The fields of a type that is a struct or may be one, each with its own; else none. None of a refused field."""
    if isinstance(type_, inspect.Metadata):
        return None if KEY in (type_.extra or {}) else _fields_of(type_.type)
    if isinstance(type_, inspect.UnionType):
        return next(filter(None, map(_fields_of, type_.types)), {})
    fields = type_.fields if isinstance(type_, inspect.StructType) else ()
    return {field.encode_name: _fields_of(field.type) for field in fields}


def _check_names(raw: bytes | msgspec.Raw, fields: Mapping[str, Any], outer: str) -> None:
    """Raises InvalidInput for an unknown field, of an object or of one inside, whose name says that it changes answers.

    What is null or empty asks for nothing.
    """
    for name, member in MEMBERS.decode(raw).items():
        value = memoryview(member)
        if fields.get(name) and value[0] == ord("{"):
            _check_names(member, fields[name], f"{outer}{name}.")
        elif name not in fields and CHANGES_ANSWER.search(WORD.sub("_", name).lower()) and not NOTHING.fullmatch(value):
            taken = [field for field, inner in fields.items() if inner is not None and CHANGES_ANSWER.search(field)]
            kin = ", ".join(taken) or "none of this kind"
            field = outer + clip(name).strip("'")
            raise InvalidInput(
                f"{field} would change the answer, and is no field of this path, which has {kin}", field=field
            )


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

    `null` means that a field is absent, and a whole number is an integer however it is written; see `LenientFields`.
    Fields that the original API has and this one cannot honour are refused by name, and so are unknown ones that would
    change the answer; see `_check_names`.
    """

    def __init__(self, kind: type[T], *, whole: bool = True) -> None:
        """`whole`: the struct has all fields of the route, so others are unknown."""
        self.kind = kind
        self._decoder = msgspec.json.Decoder(kind)
        self._lenient = LenientFields(kind)
        self._refusals = _refusals_of(kind)
        self._fields = (_fields_of(inspect.type_info(kind)) or {}) if whole else None

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
            self._check_refused({field: getattr(body, field) for field in self._refusals})
        except msgspec.ValidationError as error:
            if not MENDABLE.search(str(error)):
                raise
            content = self._lenient.content(raw)
            self._check_refused(content)  # a refusal says more than the missing field that it explains
            body = msgspec.convert(content, self.kind)
        if self._fields is not None:
            _check_names(raw, self._fields, "")
        return body

    def _check_refused(self, values: Mapping[str, Any]) -> None:
        """Checks the values of fields, of which some may be absent. Raises InvalidInput, naming the field."""
        for field, refusal in self._refusals.items():
            if values.get(field) not in refusal.harmless:
                raise InvalidInput(f"{field} is refused: {refusal.why}", field=field)

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

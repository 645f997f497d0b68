"""Bodies that are not strictly JSON of their structs: `null` for absent fields, whole floats, a byte order mark."""

import re
from typing import Any

import msgspec
from msgspec import inspect

MENDABLE = re.compile("got `(null|float)`|missing required field")
"""Messages of msgspec about bodies that may be right when read leniently, or that may have refused fields."""
MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
LARGEST = 2**63
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
    elif isinstance(content, float) and content.is_integer() and abs(content) < LARGEST:
        return int(content)
    return content

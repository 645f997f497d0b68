"""Bodies that are not strictly JSON of their structs: `null` for absence, whole floats, a byte order mark."""

import re
from typing import Any

import msgspec
from msgspec import inspect

MENDABLE = re.compile("got `(null|float)`|missing required field")
"""Messages of msgspec's about bodies that may be right once they are mended, or that may hold what is refused."""
PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
LARGEST = 2**63
"""Whole floats from here on are no integers of anybody's."""
UTF_8 = b"\xef\xbb\xbf"
OTHERS = ((b"\xff\xfe\0\0", 32), (b"\0\0\xfe\xff", 32), (b"\xff\xfe", 16), (b"\xfe\xff", 16))
"""Byte order marks of UTF-32 and UTF-16 (Unicode 16.0, section 23.8); the longer ones first, which begin alike."""


def without_mark(raw: bytes) -> bytes:
    """A body without UTF-8's byte order mark, which RFC 8259 (8.1) lets a reader skip. Raises DecodeError."""
    if raw.startswith(UTF_8):
        return raw[len(UTF_8) :]
    for mark, bits in OTHERS:
        if raw.startswith(mark):
            raise msgspec.DecodeError(f"by its byte order mark it is UTF-{bits}, and JSON is UTF-8")
    return raw


class LenientFields:
    """The fields of a struct, each mended unless its content is the caller's own: that stays as it was sent."""

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        description = inspect.type_info(kind)
        assert isinstance(description, inspect.StructType)
        self._types = {field.encode_name: field.type for field in description.fields}
        self._callers_own = {name for name, type_ in self._types.items() if _holds(type_, inspect.AnyType)}

    def content(self, raw: bytes) -> dict[str, Any]:
        """The fields of a body, for `msgspec.convert`: none that is null, whole floats as integers.

        JSON has one kind of number, so that 512.0 is 512. In a list null stays what it is. What else is in the body is
        not read: it may be large. Raises DecodeError, ValidationError, RecursionError.
        """
        members = PARTS.decode(raw)
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
        except msgspec.ValidationError as error:  # it names the place within the member
            message, _, place = str(error).partition(" - at `$")
            raise msgspec.ValidationError(f"{message} - at `$.{name}{place or '`'}") from None
        return content if name in self._callers_own else _plain(content)


def _holds(type_: inspect.Type, part: type[inspect.Type]) -> bool:
    """Tells whether a type is such a part or has one as an alternative, an entry or a value; not within structs."""
    inner: tuple[inspect.Type, ...] = ()
    if isinstance(type_, inspect.Metadata):
        inner = (type_.type,)
    elif isinstance(type_, inspect.UnionType):
        inner = type_.types
    elif isinstance(type_, inspect.ListType):
        inner = (type_.item_type,)
    elif isinstance(type_, inspect.DictType):
        inner = (type_.value_type,)
    return isinstance(type_, part) or any(_holds(alternative, part) for alternative in inner)


def _plain(content: Any) -> Any:
    """Content of a body without nulls in objects and whole floats, changed in place."""
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

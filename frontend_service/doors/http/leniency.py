"""What bodies may have beside strict JSON of their structs: `null` for absence, whole floats, a byte order mark."""

import re
from collections.abc import Container
from typing import Any

import msgspec

MENDED = re.compile("got `(null|float)`|missing required field")
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


def mended(raw: bytes, fields: Container[str]) -> dict[str, Any]:
    """These fields of a body that is an object, as Python has JSON: none that is null, whole floats as integers.

    JSON has one kind of number, so that 512.0 is 512. In a list null stays what it is. What else is in the body is not
    read: it may be large. Raises DecodeError, RecursionError.
    """
    members = PARTS.decode(raw)
    return {
        name: _plain(msgspec.json.decode(part))
        for name, part in members.items()
        if name in fields and bytes(memoryview(part)[:5]) != b"null"
    }


def _plain(content: Any) -> Any:
    """The same, changed in place."""
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

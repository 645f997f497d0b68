"""What bodies may have beside strict JSON of their structs: `null` for absence, whole floats, a byte order mark."""

import re
from typing import Any

import msgspec

MENDED = re.compile("got `(null|float)`|missing required field")
"""Messages of msgspec's about bodies that may be right once they are mended, or that may hold what is refused."""
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


def mended(content: Any) -> Any:
    """JSON as Python has it, changed in place: no members that are null, and whole floats as integers.

    JSON has one kind of number, so that 512.0 is 512. In a list null stays what it is. Raises RecursionError.
    """
    if isinstance(content, dict):
        for key in [key for key, value in content.items() if value is None]:
            del content[key]
        for key, value in content.items():
            content[key] = mended(value)
    elif isinstance(content, list):
        for place, value in enumerate(content):
            content[place] = mended(value)
    elif isinstance(content, float) and content.is_integer() and abs(content) < LARGEST:
        return int(content)
    return content

"""Reads and writes the parts of a protobuf message by hand. Format: protobuf.dev/programming-guides/encoding."""

from collections.abc import Iterator, Mapping
from contextlib import suppress

from shared.errors import LimitExceeded

MESSAGE_BYTES = 64 * 1024 * 1024
"""Most bytes of a message of any of our contracts."""
MESSAGE_ENTRIES = 200_000
"""Most fields of a message. A field takes two bytes or more on the wire, and sixteen or more once it is parsed."""
NAME_BYTES, NAMES_BYTES = 256, 1024
"""Most bytes of a name that health or reflection is asked for, and of such a request, which holds names alone."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def check_entries(raw: bytes) -> None:
    """Raises LimitExceeded if a message has more than MESSAGE_ENTRIES fields; those of nested messages are not counted.

    Bytes that are no message are left for the parser to refuse.
    """
    for count, _ in enumerate(fields(raw, 0, len(raw)), start=1):
        if count > MESSAGE_ENTRIES:
            raise LimitExceeded(f"the message has more than {MESSAGE_ENTRIES} entries")


def check_names(raw: bytes, field_names: Mapping[int, str]) -> None:
    """Raises LimitExceeded if a request that holds names alone has a long one, or is large.

    `field_names`: those of its fields, by number.
    """
    for number, start, end in fields(raw, 0, len(raw)):
        if end - start > NAME_BYTES and number in field_names:
            field = field_names[number]
            raise LimitExceeded(f"{field} has {end - start} bytes, the limit is {NAME_BYTES}", field=field)
        if end > NAMES_BYTES:
            break
    if len(raw) > NAMES_BYTES:
        raise LimitExceeded(f"the request has {len(raw)} bytes, the limit is {NAMES_BYTES}")


def fields(raw: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The number of each field of a message that lies there, and where its value begins and ends.

    It stops where the bytes are no message.
    """
    with suppress(IndexError):
        while start < end:
            tag, start = read_varint(raw, start)
            kind = tag & 7
            if kind == BYTES:
                size, start = read_varint(raw, start)
                stop = start + size
            elif kind == VARINT:
                _, stop = read_varint(raw, start)
            elif kind in (FIXED64, FIXED32):
                stop = start + (8 if kind == FIXED64 else 4)
            else:
                return
            yield tag >> 3, start, min(stop, end)
            start = stop


def read_varint(raw: bytes, place: int) -> tuple[int, int]:
    """Reads a varint (seven bits a byte, lowest first); returns its value and the position after it.

    Raises IndexError where the bytes end within it, and where it has more bytes than a number of 64 bits.
    """
    value = shift = 0
    while shift < 70:
        byte = raw[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
    raise IndexError("a varint has at most ten bytes")


def varint(value: int) -> bytes:
    """Writes a number of 0 or more as a varint: seven bits a byte, lowest first."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])

"""Bytes of a message, looked at before they are parsed. Format: protobuf.dev/programming-guides/encoding."""

from shared.errors import LimitExceeded

MESSAGE_ENTRIES = 200_000
"""Fields of a message. Each takes two bytes at least on the wire, and sixteen and more once it is parsed."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def check_entries(raw: bytes, most: int = MESSAGE_ENTRIES) -> None:
    """Raises LimitExceeded where a message has more fields than that; those inside of fields are not counted.

    What is no message is left for the parser to refuse.
    """
    place, count, end = 0, 0, len(raw)
    try:
        while place < end:
            tag, place = read_varint(raw, place)
            kind = tag & 7
            if kind == BYTES:
                size, place = read_varint(raw, place)
                place += size
            elif kind == VARINT:
                _, place = read_varint(raw, place)
            elif kind in (FIXED64, FIXED32):
                place += 8 if kind == FIXED64 else 4
            else:
                return
            count += 1
            if count > most:
                raise LimitExceeded(f"the message has more than {most} entries")
    except IndexError:
        return


def read_varint(raw: bytes, place: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where it ends."""
    value = shift = 0
    while True:
        byte = raw[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7


def varint(value: int) -> bytes:
    """A number that is not negative, of seven bits a byte, the lowest first."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])

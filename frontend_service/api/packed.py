"""Numbers as protobuf's wire has them, put into messages as bytes: as lists they would be so many Python objects first.

Format: protobuf.dev/programming-guides/encoding. numpy.
"""

from typing import Any

import numpy as np
from google.protobuf.message import Message

from shared.jobs import PackedBytes
from shared.server.rpc.wire import BYTES, FIXED32, VARINT, varint

INDEX_BYTES = 4
"""Of an index that is not shortened, seven bits a byte: 28 bits are more than any vocabulary needs."""


def put_floats(message: Message, field: str, data: PackedBytes) -> None:
    """Fills a packed float field with little-endian float32, which on the wire are just these bytes."""
    if len(data):
        message.MergeFromString(b"".join(nested(_number(message, field), data)))


def put_rows(message: Message, field: str, inner: str, data: PackedBytes, width: int) -> None:
    """Fills a repeated field with messages: the packed float field `inner` of each has `width` float32 of `data`."""
    kind = message.DESCRIPTOR.fields_by_name[field].message_type
    assert kind is not None
    row = kind.fields_by_name[inner].number
    size = 4 * width
    floats = b"".join([varint(row << 3 | BYTES), varint(size)])
    head = b"".join([varint(_number(message, field) << 3 | BYTES), varint(len(floats) + size), floats])
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, size)
    wire = np.empty((len(rows), len(head) + size), dtype=np.uint8)
    wire[:, : len(head)] = np.frombuffer(head, dtype=np.uint8)
    wire[:, len(head) :] = rows
    message.MergeFromString(wire.tobytes())


def put_pairs(message: Message, field: str, indices: PackedBytes, values: PackedBytes) -> None:
    """Fills a repeated field with messages of an index (1, int32 in `indices`) and a value (2, float32 in `values`)."""
    numbers = np.frombuffer(indices, dtype="<u4")
    wire = np.empty(len(numbers), dtype=_PAIR)
    wire["head"] = np.frombuffer(bytes([_number(message, field) << 3 | BYTES, _PAIR.itemsize - 2]), dtype=np.uint8)
    wire["index_tag"], wire["value_tag"] = 1 << 3 | VARINT, 2 << 3 | FIXED32
    shifts = np.arange(0, 7 * INDEX_BYTES, 7, dtype=np.uint32)
    wire["index"] = numbers[:, None] >> shifts & 0x7F | 0x80
    wire["index"][:, -1] &= 0x7F
    wire["value"] = np.frombuffer(values, dtype="<f4")
    message.MergeFromString(wire.tobytes())


def nested(number: int, *inner: PackedBytes) -> list[PackedBytes]:
    """A field that has `inner`, end to end, as its bytes or as its message: pieces of it, which are not copied."""
    return [varint(number << 3 | BYTES) + varint(sum(map(len, inner))), *inner]


def integers(ids: bytes) -> Any:
    """int32 as a packed field takes them."""
    return memoryview(ids).cast("i")


_PAIR = np.dtype(
    [
        ("head", np.uint8, 2),
        ("index_tag", np.uint8),
        ("index", np.uint8, INDEX_BYTES),
        ("value_tag", np.uint8),
        ("value", "<f4"),
    ]
)


def _number(message: Message, field: str) -> int:
    number: int = message.DESCRIPTOR.fields_by_name[field].number
    return number

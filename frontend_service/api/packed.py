"""Numbers written into messages in protobuf's wire format, without a Python object for each.

Format: protobuf.dev/programming-guides/encoding. numpy.
"""

from typing import Any

import numpy as np
from google.protobuf.message import Message

from shared.jobs import PackedBytes
from shared.value_codec import BYTES, FIXED32, VARINT, varint

INDEX_BYTES = 4
"""Length of an index as a varint of fixed length, seven bits a byte: 28 bits are more than any vocabulary needs."""


def put_floats(message: Message, field: str, data: PackedBytes) -> None:
    """Fills a packed float field with little-endian float32, which have the same bytes on the wire."""
    if len(data):
        tag = varint(_field_number(message, field) << 3 | BYTES)
        message.MergeFromString(b"".join([tag, varint(len(data)), data]))


def put_rows(message: Message, field: str, inner: str, data: PackedBytes, width: int) -> None:
    """Fills a repeated field with messages, each with `width` float32 of `data` in its packed float field `inner`."""
    row_type = message.DESCRIPTOR.fields_by_name[field].message_type
    assert row_type is not None
    row = row_type.fields_by_name[inner].number
    size = 4 * width
    floats = b"".join([varint(row << 3 | BYTES), varint(size)])
    head = b"".join([varint(_field_number(message, field) << 3 | BYTES), varint(len(floats) + size), floats])
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, size)
    wire = np.empty((len(rows), len(head) + size), dtype=np.uint8)
    wire[:, : len(head)] = np.frombuffer(head, dtype=np.uint8)
    wire[:, len(head) :] = rows
    message.MergeFromString(wire.tobytes())


def put_weights(message: Message, field: str, indices: PackedBytes, values: PackedBytes) -> None:
    """Fills a repeated field with messages of an index (1, int32 in `indices`) and a value (2, float32 in `values`)."""
    numbers = np.frombuffer(indices, dtype="<u4")
    wire = np.empty(len(numbers), dtype=_WEIGHT)
    wire["head"] = np.frombuffer(
        bytes([_field_number(message, field) << 3 | BYTES, _WEIGHT.itemsize - 2]), dtype=np.uint8
    )
    wire["index_tag"], wire["value_tag"] = 1 << 3 | VARINT, 2 << 3 | FIXED32
    shifts = np.arange(0, 7 * INDEX_BYTES, 7, dtype=np.uint32)
    wire["index"] = numbers[:, None] >> shifts & 0x7F | 0x80
    wire["index"][:, -1] &= 0x7F
    wire["value"] = np.frombuffer(values, dtype="<f4")
    message.MergeFromString(wire.tobytes())


def as_int32(ids: bytes) -> Any:
    """A view of little-endian int32 as numbers, which a packed field takes."""
    return memoryview(ids).cast("i")


_WEIGHT = np.dtype(
    [
        ("head", np.uint8, 2),
        ("index_tag", np.uint8),
        ("index", np.uint8, INDEX_BYTES),
        ("value_tag", np.uint8),
        ("value", "<f4"),
    ]
)


def _field_number(message: Message, field: str) -> int:
    number: int = message.DESCRIPTOR.fields_by_name[field].number
    return number

"""Vectors in messages <-> numpy arrays, both directions side by side. Knows no calls.

| data type | arrays |
|---|---|
| float32, float16 | of the same type |
| bfloat16 | float32, which holds each value exactly; numpy has no bfloat16 |
| int8 | int8; a value is its number x the scale of its row, which is a float32 |
| binary | uint8, eight dimensions a byte, the first in the highest bit; 1 where the value is >= 0 |
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from selvage.errors import InvalidInput
from selvage.v1 import vectors_pb2 as pb

Array = npt.NDArray[Any]
WIRE_TYPES = {
    pb.DATA_TYPE_FLOAT32: "<f4",
    pb.DATA_TYPE_FLOAT16: "<f2",
    pb.DATA_TYPE_BFLOAT16: "<u2",
    pb.DATA_TYPE_INT8: "i1",
    pb.DATA_TYPE_BINARY: "u1",
}
UNSPECIFIED_IS = pb.DATA_TYPE_FLOAT32
"""What a message without a data type holds."""


def rows(message: Any) -> Array:
    """The rows of a DenseVectors or MultiVectors: [rows, dimensions], binary ones [rows, bytes of a row]. Read-only."""
    kind = message.data_type or UNSPECIFIED_IS
    width = (message.dimensions + 7) // 8 if kind == pb.DATA_TYPE_BINARY else message.dimensions
    array: Array = np.frombuffer(message.data, dtype=WIRE_TYPES[kind]).reshape(-1, width)
    if kind == pb.DATA_TYPE_BFLOAT16:
        array = (array.astype("<u4") << np.uint32(16)).view("<f4")
    return array


def scales(message: Any) -> Array:
    """The scales of an int8 DenseVectors or MultiVectors: [rows] float32; [0] for other data types."""
    return np.frombuffer(message.scales, dtype="<f4")


def split_by_lengths(whole: Array, lengths: Sequence[int]) -> list[Array]:
    """Cuts the first axis into pieces of these lengths."""
    return np.split(whole, np.cumsum(lengths)[:-1]) if len(lengths) else []


def sparse(message: Any) -> list[tuple[Array, Array]]:
    """The sparse vector of each text: vocabulary ids, ascending, as int32, and their weights as float32."""
    lengths = message.lengths
    ids, weights = np.array(message.indices, dtype=np.int32), np.array(message.values, dtype=np.float32)
    return list(zip(split_by_lengths(ids, lengths), split_by_lengths(weights, lengths), strict=True))


def check_multi_vectors(arrays: Sequence[Array], field: str) -> None:
    """Raises InvalidInput where an array is not [rows, dimensions] of floats, or where dimensions differ."""
    widths = set()
    for place, array in enumerate(arrays):
        if array.ndim != 2 or array.dtype.kind != "f":
            fault = f"{field}[{place}] has the shape {array.shape} and the type {array.dtype}"
            raise InvalidInput(f"{fault}; wanted are rows x dimensions of floats", field=f"{field}[{place}]")
        widths.add(array.shape[1])
    if len(widths) > 1:
        raise InvalidInput(f"{field} have {' and '.join(map(str, sorted(widths)))} dimensions", field=field)


def to_multi_vectors(arrays: Sequence[Array]) -> pb.MultiVectors:
    """Makes a message of checked arrays [rows, dimensions]: of float16 where all arrays are, else of float32."""
    half = bool(arrays) and all(array.dtype == np.float16 for array in arrays)
    kind = pb.DATA_TYPE_FLOAT16 if half else pb.DATA_TYPE_FLOAT32
    data = b"".join(np.ascontiguousarray(array, dtype=WIRE_TYPES[kind]).tobytes() for array in arrays)
    lengths = [len(array) for array in arrays]
    return pb.MultiVectors(data_type=kind, dimensions=arrays[0].shape[1] if arrays else 0, lengths=lengths, data=data)

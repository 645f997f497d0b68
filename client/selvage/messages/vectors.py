"""Vectors as they travel <-> numpy, both directions side by side. Knows no calls.

| data type | arrays |
|---|---|
| float32, float16 | the same |
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
WIRE = {
    pb.DATA_TYPE_FLOAT32: "<f4",
    pb.DATA_TYPE_FLOAT16: "<f2",
    pb.DATA_TYPE_BFLOAT16: "<u2",
    pb.DATA_TYPE_INT8: "i1",
    pb.DATA_TYPE_BINARY: "u1",
}
UNSPECIFIED_IS = pb.DATA_TYPE_FLOAT32


def rows(message: Any) -> Array:
    """[rows, dimensions] of a DenseVectors or MultiVectors; of binary ones [rows, bytes of a row]. Read-only."""
    kind = message.data_type or UNSPECIFIED_IS
    width = (message.dimensions + 7) // 8 if kind == pb.DATA_TYPE_BINARY else message.dimensions
    found: Array = np.frombuffer(message.data, dtype=WIRE[kind]).reshape(-1, width)
    if kind == pb.DATA_TYPE_BFLOAT16:
        found = (found.astype("<u4") << np.uint32(16)).view("<f4")
    return found


def scales(message: Any) -> Array:
    """[rows] float32 of an int8 DenseVectors or MultiVectors; [0] of others."""
    return np.frombuffer(message.scales, dtype="<f4")


def multi_vectors(message: Any) -> list[Array]:
    """A [rows of the text, dimensions] each; they share one memory of their own, which may be written to."""
    return parted(rows(message).copy(), message.lengths)


def parted(whole: Array, lengths: Sequence[int]) -> list[Array]:
    """The first axis cut into so many entries each."""
    return np.split(whole, np.cumsum(lengths)[:-1]) if len(lengths) else []


def sparse(message: Any) -> list[tuple[Array, Array]]:
    """Of each text the vocabulary ids, ascending, as int32, and their weights as float32."""
    lengths = message.lengths
    ids, weights = np.array(message.indices, dtype=np.int32), np.array(message.values, dtype=np.float32)
    return list(zip(parted(ids, lengths), parted(weights, lengths), strict=True))


def check_multi_vectors(arrays: Sequence[Array], field: str) -> None:
    """Raises InvalidInput where they are no arrays of [rows, dimensions] each, or differ in their dimensions."""
    widths = set()
    for place, each in enumerate(arrays):
        if each.ndim != 2 or each.dtype.kind != "f":
            told = f"{field}[{place}] has the shape {each.shape} and the type {each.dtype}"
            raise InvalidInput(f"{told}; wanted are rows x dimensions of floats", field=f"{field}[{place}]")
        widths.add(each.shape[1])
    if len(widths) > 1:
        raise InvalidInput(f"{field} have {' and '.join(map(str, sorted(widths)))} dimensions", field=field)


def to_multi_vectors(arrays: Sequence[Array]) -> pb.MultiVectors:
    """Arrays that were checked: as float16 where all are, else as float32."""
    half = bool(arrays) and all(each.dtype == np.float16 for each in arrays)
    kind = pb.DATA_TYPE_FLOAT16 if half else pb.DATA_TYPE_FLOAT32
    data = b"".join(np.ascontiguousarray(each, dtype=WIRE[kind]).tobytes() for each in arrays)
    lengths = [len(each) for each in arrays]
    return pb.MultiVectors(data_type=kind, dimensions=arrays[0].shape[1] if arrays else 0, lengths=lengths, data=data)

"""Rows of float32 -> packed rows, by numpy alone. The worker packs most rows where they are made (`row_kernels`)."""

import numpy as np
from numpy.typing import NDArray

from shared.jobs import Rows
from shared.vectors import DataType

TINY = np.finfo(np.float32).tiny


def pack(rows: NDArray[np.float32], data_type: DataType) -> Rows:
    """Packs rows [N, D] without NaN.

    The float types are little-endian. INT8: each number as a multiple of its row's scale, which is the row's largest
    magnitude / 127; scales [N] are float32. BINARY: a bit a number, set where it is not negative, eight to a byte, the
    first one highest. The tests hold it to `gpu_worker.kernels.rows.row_kernels.pack`.
    """
    scales = b""
    match data_type:
        case DataType.FLOAT32:
            data = rows.astype("<f4", copy=False).tobytes()
        case DataType.FLOAT16:
            with np.errstate(over="ignore"):  # too large becomes infinite, as in torch
                data = rows.astype("<f2").tobytes()
        case DataType.BFLOAT16:
            data = _bfloat16(rows).tobytes()
        case DataType.INT8:
            largest = np.abs(rows).max(axis=1, initial=TINY)
            unit = largest / np.float32(127)  # [N]
            data = np.clip(np.rint(rows / unit[:, None]), -127, 127).astype(np.int8).tobytes()
            scales = unit.astype("<f4", copy=False).tobytes()
        case DataType.BINARY:
            data = np.packbits(rows >= 0, axis=1).tobytes()
    return Rows(dimensions=rows.shape[1], data=data, scales=scales)


def _bfloat16(rows: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves of the numbers, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(rows).view(np.uint32)
    odd = bits >> np.uint32(16) & np.uint32(1)
    return (bits + np.uint32(0x7FFF) + odd >> np.uint32(16)).astype("<u2")

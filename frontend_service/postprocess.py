"""Numbers into answers: ranking and checks of given vectors. numpy; runs in threads."""

import numpy as np

from shared.errors import InvalidInput
from shared.vectors import DataType, MultiVectors


def rank(scores: bytes, top_n: int | None) -> list[tuple[int, float]]:
    """float32 scores [S] -> (index, score), best first; equal scores keep their order."""
    values = np.frombuffer(scores, dtype="<f4")
    order = np.argsort(-values, kind="stable")[:top_n]
    return list(zip(order.tolist(), values[order].tolist(), strict=True))


def check_finite(vectors: MultiVectors, field: str) -> None:
    """Raises InvalidInput where given vectors hold NaN or infinity."""
    match vectors.data_type:
        case DataType.FLOAT32:
            finite = np.isfinite(np.frombuffer(vectors.data, dtype="<f4"))
        case DataType.FLOAT16:
            finite = np.isfinite(np.frombuffer(vectors.data, dtype="<f2"))
        case DataType.BFLOAT16:
            finite = np.frombuffer(vectors.data, dtype="<u2") & 0x7F80 != 0x7F80
        case DataType.INT8:
            finite = np.isfinite(np.frombuffer(vectors.scales, dtype="<f4"))
        case DataType.BINARY:
            return
    if not finite.all():
        raise InvalidInput(f"{field} holds NaN or infinity", field=f"{field}.data")

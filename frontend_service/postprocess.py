"""Numbers into answers: ranking and checks of given vectors. numpy; runs in threads."""

import numpy as np

from shared.errors import InvalidInput
from shared.vectors import Activation, DataType, MultiVectors


def rank(scores: bytes, top_n: int | None) -> list[tuple[int, float]]:
    """float32 scores [S] -> (index, score), best first; equal scores keep their order."""
    values = np.frombuffer(scores, dtype="<f4")
    order = np.argsort(-values, kind="stable")[:top_n]
    return list(zip(order.tolist(), values[order].tolist(), strict=True))


def activate(logits: bytes, labels: int, activation: Activation) -> bytes:
    """float32 logits [N, labels] -> scores of the same shape, computed in float64."""
    values = np.frombuffer(logits, dtype="<f4").astype(np.float64).reshape(-1, labels)
    match activation:
        case Activation.SIGMOID:
            values = 0.5 * (1 + np.tanh(values / 2))  # 1 / (1 + exp(-x)) without overflow
        case Activation.TANH:
            values = np.tanh(values)
        case Activation.SOFTMAX:
            powers = np.exp(values - values.max(axis=1, keepdims=True))
            values = powers / powers.sum(axis=1, keepdims=True)
        case _:
            return logits
    return values.astype("<f4").tobytes()


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

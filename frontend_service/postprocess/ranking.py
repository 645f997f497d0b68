"""Scores of results: sorted and activated; and checks of the vectors in a request. numpy; runs in threads."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shared.errors import InvalidInput
from shared.jobs import JobResult, PackedBytes
from shared.vectors import Activation, DataType, MultiVectors


def rank(scores: PackedBytes, top_n: int | None) -> list[tuple[int, float]]:
    """float32 scores [S] -> (index, score), best first; equal scores keep their order."""
    values = np.frombuffer(scores, dtype="<f4")
    order = np.argsort(-values, kind="stable")[:top_n]
    return list(zip(order.tolist(), values[order].tolist(), strict=True))


def activate(logits: PackedBytes, labels: int, activation: Activation) -> bytes:
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
            return bytes(logits)
    return values.astype("<f4").tobytes()


def activate_result(result: JobResult, labels: int, activation: Activation) -> JobResult:
    """The result with scores instead of logits."""
    return replace(result, scores=activate(result.scores, labels, activation))


def check_finite(sides: dict[str, MultiVectors]) -> None:
    """Raises InvalidInput, naming the side, where vectors hold NaN or infinity, or products of the sides might."""
    largest = {field: _largest(vectors) for field, vectors in sides.items()}
    for field, value in largest.items():
        if not np.isfinite(value):
            raise InvalidInput(f"{field} holds NaN or infinity", field=f"{field}.data")
    field, vectors = list(sides.items())[-1]
    if np.prod(list(largest.values())) * vectors.dimensions > np.finfo(np.float32).max:
        raise InvalidInput("products of the given vectors may overflow float32", field=f"{field}.data")


def _largest(vectors: MultiVectors) -> float:
    """The largest magnitude of a number in the vectors; NaN or infinity if one is there."""
    match vectors.data_type:
        case DataType.FLOAT32:
            values = np.frombuffer(vectors.data, dtype="<f4")
        case DataType.FLOAT16:
            values = np.frombuffer(vectors.data, dtype="<f2")
        case DataType.BFLOAT16:
            magnitudes = np.frombuffer(vectors.data, dtype="<u2") & 0x7FFF  # ordered as the numbers are, NaN last
            return float((magnitudes.max(initial=0).astype(np.uint32) << 16).view(np.float32))
        case DataType.INT8:
            values = np.frombuffer(vectors.scales, dtype="<f4") * 128
        case DataType.BINARY:
            return 1.0
    return float(max(values.max(initial=0), -values.min(initial=0)))


def largest_bytes(texts: Sequence[str], count: int) -> int:
    """UTF-8 bytes of the `count` largest texts, with what a message adds to each."""
    sizes = sorted((len(text.encode()) for text in texts), reverse=True)
    return sum(sizes[:count]) + 32 * count

"""Scores of results, sorted and activated. numpy; runs in threads."""

from dataclasses import replace

import numpy as np

from shared.jobs import JobResult, PackedBytes
from shared.vectors import Activation


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

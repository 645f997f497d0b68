"""Scores of results, sorted and activated. numpy; runs in threads."""

from dataclasses import replace

import numpy as np

from shared.jobs import JobResult, PackedBytes
from shared.vectors import Activation


def rank(ranked_by: PackedBytes, scores: PackedBytes, top_n: int | None) -> list[tuple[int, float]]:
    """float32 scores [S] -> (index, score), in the order of float32 `ranked_by` [S], largest first.

    Scores of an activation are no order: a sigmoid in float32 is 1 from 18 on. Equal numbers keep their order.
    """
    order = np.argsort(-np.frombuffer(ranked_by, dtype="<f4"), kind="stable")[:top_n]
    return list(zip(order.tolist(), np.frombuffer(scores, dtype="<f4")[order].tolist(), strict=True))


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

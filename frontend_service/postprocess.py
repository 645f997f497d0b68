"""What becomes of a worker's numbers: ranking, activation, listwise scores, explanations.

numpy; runs in threads. Knows no request of an API and no worker.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.card import ModelCard
from shared.jobs import JobResult, PackedBytes, RaggedTokens, Rows
from shared.vectors import Activation

LEAST_LENGTH = 1e-8
"""Rows are taken to be no shorter than this, as PyTorch's cosine_similarity does: a row of zeros scores 0."""


def rank(ranked_by: PackedBytes, scores: PackedBytes, top_n: int | None) -> list[tuple[int, float]]:
    """float32 scores [S] -> (index, score), in the order of float32 `ranked_by` [S], largest first.

    Scores of an activation are no order: a sigmoid in float32 is 1 from 18 on. Equal numbers keep their order.
    """
    order = np.argsort(-np.frombuffer(ranked_by, dtype="<f4"), kind="stable")[:top_n]
    return list(zip(order.tolist(), np.frombuffer(scores, dtype="<f4")[order].tolist(), strict=True))


def activation_of(card: ModelCard, wanted: bool | None) -> Activation:
    """The activation of logits. `wanted`: whether the request asks for one; None: what the files name, or none."""
    if wanted is None:
        return card.activation
    if not wanted:
        return Activation.IDENTITY
    if card.activation is not Activation.IDENTITY:
        return card.activation
    return Activation.SIGMOID if len(card.labels) == 1 else Activation.SOFTMAX


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


def listwise_scores(rows: Rows, documents: Sequence[int], counts: Sequence[int]) -> bytes:
    """Scores of a listwise reranker: cosines of each query with its documents, float32, query by query.

    `rows` holds float32 rows of blocks: those of the block's documents, `documents` [B] of them, then the query's.
    `counts` [Q]: blocks of each query. The query of several blocks is the mean of its rows, weighted by (1 + c) / 2
    with the block's largest cosine c.
    """
    values = np.frombuffer(rows.data, dtype="<f4").reshape(-1, rows.dimensions)  # [D + B, width]
    stops = np.cumsum([size + 1 for size in documents]).tolist()
    blocks = [values[stop - size - 1 : stop] for stop, size in zip(stops, documents, strict=True)]
    result, first, filled = np.empty(sum(documents), dtype="<f4"), 0, 0
    for count in counts:
        query_blocks = blocks[first : first + count]
        query = _query_mean(query_blocks)
        for block in query_blocks:
            size = len(block) - 1
            result[filled : filled + size] = _cosines(block[:-1], query)
            filled += size
        first += count
    return result.tobytes()


def _query_mean(blocks: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
    """The query [width] of its rows in several blocks [documents + 1, width]."""
    queries = [block[-1].astype(np.float64) for block in blocks]
    best = [_cosines(block[:-1], query).max() for block, query in zip(blocks, queries, strict=True)]
    weights = [max(0.0, (1 + cosine) / 2) for cosine in best]  # -1 may be a little less by rounding
    mean: NDArray[np.float64] = np.average(queries, axis=0, weights=weights if any(weights) else None)
    return mean


def _cosines(rows: NDArray[np.float32], query: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cosines [n] of rows [n, width] with a query [width]. One block's rows are float64 at a time: all may be 64 MB."""
    wide = rows.astype(np.float64)
    lengths = np.maximum(np.linalg.norm(wide, axis=1), LEAST_LENGTH)
    cosines: NDArray[np.float64] = wide @ query / (lengths * max(float(np.linalg.norm(query)), LEAST_LENGTH))
    return cosines


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedToken:
    """A query token and its best match as the vocabulary writes them. `position`: that of the match in its document."""

    query_token: str
    document_token: str
    position: int
    similarity: float


def explain(
    result: JobResult, tokens: RaggedTokens, documents: Sequence[int], token_text: Callable[[int], str]
) -> list[list[MatchedToken]]:
    """Explains late-interaction scores: for each query token the document token that matched it best.

    Of these documents, by number: a list for each, empty for one without a token that counts.

    `tokens`: those of the single query, then those of all documents. `token_text`: a token id as the vocabulary writes
    it.
    """
    query = tokens.lengths[0]
    ids, offsets = np.frombuffer(tokens.ids, dtype="<i4"), tokens.offsets
    winners = np.frombuffer(result.winners, dtype="<i4").reshape(-1, query)
    similarities = np.frombuffer(result.similarities, dtype="<f4").reshape(-1, query)
    query_tokens = [token_text(int(token_id)) for token_id in ids[:query]]
    return [
        [
            MatchedToken(
                query_token=query_tokens[place],
                document_token=token_text(int(ids[offsets[1 + document] + winners[document, place]])),
                position=int(winners[document, place]),
                similarity=float(similarities[document, place]),
            )
            for place in np.flatnonzero(winners[document] >= 0).tolist()
        ]
        for document in documents
    ]


def unpack_float32(rows: Rows) -> NDArray[np.float32]:
    """Packed FLOAT32 rows as an array [N, D], read-only."""
    return np.frombuffer(rows.data, dtype="<f4").reshape(-1, rows.dimensions)

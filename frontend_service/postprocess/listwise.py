"""Scores of a listwise reranker, from the rows at the markers of its blocks. numpy; runs in threads."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shared.jobs import Rows

LEAST_LENGTH = 1e-8
"""Rows are taken to be no shorter than this, as PyTorch's cosine_similarity does: a row of zeros scores 0."""


def scores(rows: Rows, documents: Sequence[int], counts: Sequence[int]) -> bytes:
    """Cosines of each query with its documents, float32, query by query.

    `rows` holds float32 rows of blocks: those of the block's documents, `documents` [B] of them, then the query's.
    `counts` [Q]: blocks of each query. The query of several blocks is the mean of its rows, weighted by (1 + c) / 2
    with the block's largest cosine c.
    """
    values = np.frombuffer(rows.data, dtype="<f4").reshape(-1, rows.dimensions)  # [D + B, width]
    stops = np.cumsum([size + 1 for size in documents]).tolist()
    blocks = [values[stop - size - 1 : stop] for stop, size in zip(stops, documents, strict=True)]
    result, first, filled = np.empty(sum(documents), dtype="<f4"), 0, 0
    for count in counts:
        parts = blocks[first : first + count]
        query = _mean(parts)
        for block in parts:
            size = len(block) - 1
            result[filled : filled + size] = _cosines(block[:-1], query)
            filled += size
        first += count
    return result.tobytes()


def _mean(blocks: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
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

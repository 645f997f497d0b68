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
    values = np.frombuffer(rows.data, dtype="<f4").reshape(-1, rows.dimensions).astype(np.float64)
    cosines, start, blocks = list[NDArray[np.float64]](), 0, iter(documents)
    for count in counts:
        queries, sides = list[NDArray[np.float64]](), list[NDArray[np.float64]]()
        for _ in range(count):
            stop = start + next(blocks)
            sides.append(_unit(values[start:stop]))
            queries.append(values[stop])
            start = stop + 1
        weights = [(1 + (side @ _unit(query)).max()) / 2 for side, query in zip(sides, queries, strict=True)]
        query = np.average(queries, axis=0, weights=weights if sum(weights) > 0 else None)
        cosines.append(np.concatenate(sides) @ _unit(query))
    return np.concatenate(cosines).astype("<f4").tobytes()


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows of unit length."""
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    unit: NDArray[np.float64] = rows / np.maximum(lengths, LEAST_LENGTH)
    return unit

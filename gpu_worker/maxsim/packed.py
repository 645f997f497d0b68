"""MaxSim over packed rows: one product for many documents, then a maximum a segment. No padding, bounded memory."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gpu_worker.maxsim.reference import EMPTY_DOCUMENT
from gpu_worker.ragged_batch import to_device

BLOCK_ELEMENTS = 16_384 * 32
"""Similarities in memory at once: 16k document rows with a query of 32 rows stay in the processor's cache."""
BEST_ELEMENTS = 4_194_304
"""Maxima in memory at once, one a document and query row."""


def maxsim(queries: Tensor, query_lengths: Sequence[int], documents: Tensor, document_lengths: Sequence[int]) -> Tensor:
    """Scores [Q, S] float32 of Q queries with S documents.

    queries [sum of query_lengths, D] and documents [sum of document_lengths, D] are float32 on one device, their
    texts laid end to end; a length may be 0 (see `reference`). Memory is bounded whatever the lengths.
    """
    scores = torch.zeros(len(query_lengths), len(document_lengths), device=queries.device)
    query_of, document_of = (_segments(each, queries.device) for each in (query_lengths, document_lengths))
    step = max(32, BEST_ELEMENTS // max(1, len(document_lengths)))
    for start in range(0, len(queries), step):
        rows = queries[start : start + step]
        best = _best(rows, documents, document_of, len(document_lengths))
        scores.index_add_(0, query_of[start : start + step], best.T.contiguous())
    empty = np.array(document_lengths, dtype=np.int64) == 0
    if empty.any():
        scores.masked_fill_(to_device(torch.from_numpy(empty), scores.device), EMPTY_DOCUMENT)
    return scores


def _best(rows: Tensor, documents: Tensor, document_of: Tensor, count: int) -> Tensor:
    """[S, q] the largest product of each query row with a row of each document; -inf for an empty one."""
    best = torch.full((count, len(rows)), float("-inf"), device=rows.device)
    step = max(1, BLOCK_ELEMENTS // len(rows))
    for start in range(0, len(documents), step):
        products = documents[start : start + step] @ rows.T
        segments = document_of[start : start + step, None].expand_as(products)
        best.scatter_reduce_(0, segments, products, reduce="amax")
    return best


def _segments(lengths: Sequence[int], device: torch.device) -> Tensor:
    """[sum of lengths] int64: to which text each row belongs."""
    return to_device(torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)), device)

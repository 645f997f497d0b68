"""MaxSim over packed rows: one product for many documents, then a maximum a segment. No padding, bounded memory."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gpu_worker.maxsim.reference import EMPTY_DOCUMENT
from gpu_worker.ragged_batch import to_device

BLOCK_ELEMENTS = 16_384 * 32
"""Similarities in memory at once: 16k document rows with a query of 32 rows stay in the processor's cache."""


def maxsim(queries: Tensor, query_lengths: Sequence[int], documents: Tensor, document_lengths: Sequence[int]) -> Tensor:
    """Scores [Q, S] float32 of Q queries with S documents.

    queries [sum of query_lengths, D] and documents [sum of document_lengths, D] are float32 on one device, their
    texts laid end to end; a length may be 0 (see `reference`).
    """
    scores = torch.empty(len(query_lengths), len(document_lengths), device=queries.device)
    ends = np.cumsum([0, *query_lengths])
    for first, last in _query_blocks(query_lengths):
        rows = queries[ends[first] : ends[last]]
        best = _best(rows, documents, document_lengths)
        owner = _segments(query_lengths[first:last], queries.device)
        block = torch.zeros(last - first, len(document_lengths), device=queries.device)
        scores[first:last] = block.index_add_(0, owner, best.T.contiguous())
    empty = np.array(document_lengths, dtype=np.int64) == 0
    if empty.any():
        scores.masked_fill_(to_device(torch.from_numpy(empty), scores.device), EMPTY_DOCUMENT)
    return scores


def _best(rows: Tensor, documents: Tensor, lengths: Sequence[int]) -> Tensor:
    """[S, q] the largest product of each query row with a row of each document; -inf for an empty one."""
    best = torch.full((len(lengths), len(rows)), float("-inf"), device=rows.device)
    owner = _segments(lengths, rows.device)
    step = max(1, BLOCK_ELEMENTS // max(1, len(rows)))
    for start in range(0, len(documents), step):
        products = documents[start : start + step] @ rows.T
        segments = owner[start : start + step, None].expand_as(products)
        best.scatter_reduce_(0, segments, products, reduce="amax")
    return best


def _segments(lengths: Sequence[int], device: torch.device) -> Tensor:
    """[sum of lengths] int64: to which text each row belongs."""
    return to_device(torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)), device)


def _query_blocks(lengths: Sequence[int], rows: int = 4096) -> list[tuple[int, int]]:
    """Ranges of queries with at most `rows` rows together, at least one query each."""
    blocks, first, held = [], 0, 0
    for index, length in enumerate(lengths):
        if held and held + length > rows:
            blocks.append((first, index))
            first, held = index, 0
        held += length
    return [*blocks, (first, len(lengths))]

"""Which document row each query row matched best: what explains a score. No I/O."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from gpu_worker.maxsim.comparison import Mask, Texts
from gpu_worker.ragged_batch import Counts, row_ranges, to_device

BLOCK_ELEMENTS = 2_097_152
"""Similarities in memory at once, unless one document with 256 query rows has more."""
QUERY_ROWS = 256


def winners(queries: Tensor, documents: Tensor, texts: Texts, kept: Mask | None = None) -> tuple[Tensor, Tensor]:
    """For every document and query row the largest similarity [S, q] float32, and its row in the text [S, q] int32.

    queries [q, D], documents [N, D] with its `texts`; `kept` [N] are the rows that count. Of equal similarities the
    first wins. A document without rows that count has the similarity 0 and the row -1.
    """
    similarities = queries.new_zeros(len(texts), len(queries), dtype=torch.float32)
    places = torch.full(similarities.shape, -1, dtype=torch.int32, device=queries.device)
    for first, last in _blocks(texts.lengths):
        block = texts.part(first, last)
        rows = row_ranges(block.starts, block.lengths)
        text_of = np.repeat(np.arange(len(block)), block.lengths)
        within = rows - np.repeat(block.starts, block.lengths)
        if kept is not None:
            counted = kept[rows]
            rows, text_of, within = rows[counted], text_of[counted], within[counted]
        staged = (torch.from_numpy(each) for each in (rows, text_of, within))
        index, segments, positions = (to_device(each, queries.device) for each in staged)
        found = documents.index_select(0, index).float()
        for start in range(0, len(queries), QUERY_ROWS):
            columns = slice(start, start + QUERY_ROWS)
            products = found @ queries[columns].float().T
            into = segments[:, None].expand_as(products)
            best = products.new_full((len(block), products.shape[1]), float("-inf"))
            best.scatter_reduce_(0, into, products, reduce="amax")
            none = int(max(block.lengths, default=0))
            where = torch.where(products == best.index_select(0, segments), positions[:, None], none)
            winning = torch.full_like(best, none, dtype=torch.int64).scatter_reduce_(0, into, where, reduce="amin")
            similarities[first:last, columns] = best.masked_fill(winning == none, 0.0)
            places[first:last, columns] = winning.masked_fill(winning == none, -1).int()
    return similarities, places


def _blocks(lengths: Counts) -> Iterator[tuple[int, int]]:
    """Ranges of whole documents whose similarities fit into a block; at least one document each."""
    start = rows = 0
    for text, length in enumerate(lengths.tolist()):
        if text > start and (rows + length) * QUERY_ROWS > BLOCK_ELEMENTS:
            yield start, text
            start, rows = text, 0
        rows += length
    yield start, len(lengths)

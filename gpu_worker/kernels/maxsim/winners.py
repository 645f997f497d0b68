"""The document row that each query row matched best, which explains a score. No I/O."""

import torch
from torch import Tensor

from gpu_worker.kernels.maxsim.comparison import Mask, Texts
from gpu_worker.kernels.rows import row_kernels
from gpu_worker.ragged.upload import to_device

BLOCK_ELEMENTS = 2_097_152
"""Limit for similarities in memory at once, whatever the lengths."""


def winners(queries: Tensor, documents: Tensor, texts: Texts, row_mask: Mask | None = None) -> tuple[Tensor, Tensor]:
    """Finds the largest similarity [S, q] float32 of every document and query row, and its row [S, q] int32.

    queries [q, D], documents [N, D] with its `texts`; `row_mask` [N] selects the rows that count. Of equal similarities
    the first wins. A document without rows that count has the similarity 0 and the row -1. Documents are computed one
    after the other: explanations are few, and memory then does not depend on the number or the lengths of documents.
    """
    best = queries.new_full((len(texts), len(queries)), float("-inf"), dtype=torch.float32)
    places = torch.full(best.shape, -1, dtype=torch.int32, device=queries.device)
    query_rows, step = queries.float(), max(1, BLOCK_ELEMENTS // max(1, len(queries)))
    kernels = row_kernels.choose(queries.device)
    counted = None if row_mask is None else to_device(torch.from_numpy(row_mask), queries.device)
    for text, (first, length) in enumerate(zip(texts.starts.tolist(), texts.lengths.tolist(), strict=True)):
        for start in range(first, first + length, step):
            rows = slice(start, min(start + step, first + length))
            products = kernels.products(query_rows, documents[rows].float())
            if counted is not None:
                products.masked_fill_(~counted[rows], float("-inf"))
            largest, where = products.max(dim=1)  # of equal ones the first
            better = largest > best[text]
            places[text] = torch.where(better, (where + (start - first)).int(), places[text])
            best[text] = torch.where(better, largest, best[text])
    return best.masked_fill_(places < 0, 0.0), places

"""Which document row each query row matched best: what explains a score. No I/O."""

import torch
from torch import Tensor

from gpu_worker.kernels.maxsim.comparison import Mask, Texts
from gpu_worker.ragged.upload import to_device

BLOCK_ELEMENTS = 2_097_152
"""Similarities in memory at once, whatever the lengths."""


def winners(queries: Tensor, documents: Tensor, texts: Texts, kept: Mask | None = None) -> tuple[Tensor, Tensor]:
    """For every document and query row the largest similarity [S, q] float32, and its row in the text [S, q] int32.

    queries [q, D], documents [N, D] with its `texts`; `kept` [N] are the rows that count. Of equal similarities the
    first wins. A document without rows that count has the similarity 0 and the row -1. One document after the other:
    explanations are few, and this way memory does not depend on how many documents there are, or how long.
    """
    best = queries.new_full((len(texts), len(queries)), float("-inf"), dtype=torch.float32)
    places = torch.full(best.shape, -1, dtype=torch.int32, device=queries.device)
    asked, step = queries.float(), max(1, BLOCK_ELEMENTS // max(1, len(queries)))
    counted = None if kept is None else to_device(torch.from_numpy(kept), queries.device)
    for text, (first, length) in enumerate(zip(texts.starts.tolist(), texts.lengths.tolist(), strict=True)):
        for start in range(first, first + length, step):
            rows = slice(start, min(start + step, first + length))
            products = asked @ documents[rows].float().T
            if counted is not None:
                products.masked_fill_(~counted[rows], float("-inf"))
            largest, where = products.max(dim=1)  # of equal ones the first
            better = largest > best[text]
            places[text] = torch.where(better, (where + (start - first)).int(), places[text])
            best[text] = torch.where(better, largest, best[text])
    return best.masked_fill_(places < 0, 0.0), places

"""MaxSim written out: the twin that every faster kernel is compared with."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpu_worker.kernels.maxsim.comparison import Comparison, Mask
from shared.vectors import Layout

EMPTY_DOCUMENT = -1e9
"""Score of a document without rows, as sentence-transformers has it."""


def maxsim(queries: Sequence[Tensor], documents: Sequence[Tensor]) -> Tensor:
    """Computes scores [Q, S] float32 of every query [q, D] with every document [d, D].

    The sum over query rows of the largest dot product with a document row, in float32. A document without rows
    scores -1e9, a query without rows 0.
    """
    scores = torch.empty(len(queries), len(documents))
    for i, query in enumerate(queries):
        for j, document in enumerate(documents):
            if len(document) == 0:
                scores[i, j] = EMPTY_DOCUMENT
            else:
                scores[i, j] = (query.float() @ document.float().T).amax(dim=1).sum()
    return scores


def compare(
    queries: Tensor, documents: Tensor, comparisons: Sequence[Comparison], row_mask: Mask | None = None
) -> Tensor:
    """Computes scores as a `comparison.MaxSimKernel` does, on the CPU, one pair after the other."""
    scores = [torch.empty(0)]
    for comparison in comparisons:
        query_rows = [
            queries[start : start + length]
            for start, length in zip(comparison.queries.starts, comparison.queries.lengths, strict=True)
        ]
        document_rows = []
        for start, length in zip(comparison.documents.starts, comparison.documents.lengths, strict=True):
            rows = documents[start : start + length]
            document_rows.append(rows if row_mask is None else rows[torch.from_numpy(row_mask[start : start + length])])
        if comparison.layout is Layout.PAIRS:
            scores += [
                maxsim([query], [document]).flatten() for query, document in zip(query_rows, document_rows, strict=True)
            ]
        else:
            scores.append(maxsim(query_rows, document_rows).flatten())
    return torch.cat(scores)

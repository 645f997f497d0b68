"""MaxSim by PyTorch's products, document by document, where no kernel serves."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gpu_worker.kernels.maxsim.comparison import Comparison, Mask, Texts
from gpu_worker.kernels.maxsim.reference import EMPTY_DOCUMENT
from gpu_worker.ragged.texts import row_ranges
from gpu_worker.ragged.upload import to_device
from shared.vectors import Layout

BLOCK_ELEMENTS = 16_384 * 32
"""Limit for similarities in memory at once, whatever the lengths."""


class PlainMaxSim:
    """The `comparison.MaxSimKernel` of processors without our kernels, and of devices without a kernel of theirs."""

    name = "plain (torch)"

    def __call__(
        self, queries: Tensor, documents: Tensor, comparisons: Sequence[Comparison], row_mask: Mask | None = None
    ) -> Tensor:
        """Computes scores (see `comparison.MaxSimKernel`); converts half precision to float32."""
        queries, documents = queries.float(), documents.float()
        scores = [queries.new_empty(0)]
        for comparison in comparisons:
            rows_of = [
                _rows(documents, start, length, row_mask)
                for start, length in zip(comparison.documents.starts, comparison.documents.lengths, strict=True)
            ]
            if comparison.layout is Layout.PAIRS:
                for pair, rows in enumerate(rows_of):
                    scores.append(
                        _scores(*_gathered(queries, comparison.queries.part(pair, pair + 1)), [rows]).flatten()
                    )
            else:
                scores.append(_scores(*_gathered(queries, comparison.queries), rows_of).flatten())
        return torch.cat(scores)


def _rows(documents: Tensor, start: int, length: int, row_mask: Mask | None) -> Tensor:
    """The rows of a document that count."""
    rows = documents[start : start + length]
    if row_mask is None:
        return rows
    return rows.index_select(
        0, to_device(torch.from_numpy(np.flatnonzero(row_mask[start : start + length])), rows.device)
    )


def _gathered(queries: Tensor, texts: Texts) -> tuple[Tensor, Tensor, int]:
    """All rows of the queries, the number of each row's query, and the number of queries."""
    rows, text_of = row_ranges(texts.starts, texts.lengths), np.repeat(np.arange(len(texts)), texts.lengths)
    places, texts_of_rows = (to_device(torch.from_numpy(numbers), queries.device) for numbers in (rows, text_of))
    return queries.index_select(0, places), texts_of_rows, len(texts)


def _scores(rows: Tensor, text_of: Tensor, count: int, documents: Sequence[Tensor]) -> Tensor:
    """Scores [count, documents] of queries' rows [R, D], of which row r belongs to query `text_of`[r]."""
    scores = rows.new_zeros(count, len(documents))
    for number, document in enumerate(documents):
        if len(document) == 0:
            scores[:, number] = EMPTY_DOCUMENT
            continue
        best = rows.new_full((len(rows),), float("-inf"))
        for part in document.split(max(1, BLOCK_ELEMENTS // max(1, len(rows)))):
            torch.maximum(best, (rows @ part.T).amax(dim=1), out=best)
        scores[:, number] = rows.new_zeros(count).index_add_(0, text_of, best)
    return scores

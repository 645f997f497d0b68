"""MaxSim over packed rows: one product for many documents, then a maximum for each. No padding, bounded memory.

Rows are read in place: neighbouring texts make one span. Only where spans are too short to be worth a product each are
their rows gathered first. Rows that do not count are put into a text of their own.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from gpu_worker.kernels.maxsim.comparison import Comparison, Mask, Texts
from gpu_worker.kernels.maxsim.reference import EMPTY_DOCUMENT
from gpu_worker.ragged.texts import row_ranges
from gpu_worker.ragged.token_types import Counts
from gpu_worker.ragged.upload import to_device
from shared.vectors import Layout

BLOCK_ELEMENTS = 16_384 * 32
"""Limit for similarities in memory at once: 16k document rows with a query of 32 rows stay in the processor's cache."""
BEST_ELEMENTS = 4_194_304
"""Limit for maxima in memory at once, one for each document and query row."""
SPAN_ROWS = 256
"""Spans with fewer rows on average are copied together first: calling a product for each would cost more than the copy.
The number is a guess from the time of a call; only speed depends on it."""


class PackedMaxSim:
    """The `comparison.MaxSimKernel` for processors, and for devices without a kernel of their own."""

    name = "packed (torch)"

    def __call__(
        self, queries: Tensor, documents: Tensor, comparisons: Sequence[Comparison], row_mask: Mask | None = None
    ) -> Tensor:
        """Computes scores (see `comparison.MaxSimKernel`); converts half precision to float32."""
        queries, documents = queries.float(), documents.float()
        scores = [queries.new_empty(0)]
        for comparison in comparisons:
            compare = self._pairs if comparison.layout is Layout.PAIRS else self._matrix
            block = compare(queries, comparison.queries, documents, comparison.documents, row_mask)
            empty = comparison.documents.counted(row_mask) == 0
            if empty.any():
                block.masked_fill_(to_device(torch.from_numpy(empty), block.device), EMPTY_DOCUMENT)
            scores.append(block.flatten())
        return torch.cat(scores)

    def _matrix(
        self, queries: Tensor, query_texts: Texts, documents: Tensor, document_texts: Texts, row_mask: Mask | None
    ) -> Tensor:
        """Scores [Q, S] of every query with every document."""
        device = queries.device
        scores = torch.zeros(len(query_texts), len(document_texts), device=device)
        rows = to_device(torch.from_numpy(row_ranges(query_texts.starts, query_texts.lengths)), device)
        query_of = to_device(torch.from_numpy(np.repeat(np.arange(len(query_texts)), query_texts.lengths)), device)
        step = max(32, BEST_ELEMENTS // max(1, len(document_texts)))
        for start in range(0, len(rows), step):
            part = queries.index_select(0, rows[start : start + step])
            best = self._best(part, documents, document_texts, row_mask)
            scores.index_add_(0, query_of[start : start + step], best.T.contiguous())
        return scores

    def _best(self, queries: Tensor, documents: Tensor, document_texts: Texts, row_mask: Mask | None) -> Tensor:
        """Largest product [S, q] of each query row with the rows of each document that count; -inf where none does."""
        count, step = len(document_texts), max(1, BLOCK_ELEMENTS // len(queries))
        best = queries.new_full((count + 1, len(queries)), float("-inf"))
        for rows, text_of in _spans(documents, document_texts, row_mask):
            text_of_row = to_device(torch.from_numpy(text_of), queries.device)
            for start in range(0, len(rows), step):
                similarities = rows[start : start + step] @ queries.T
                where = text_of_row[start : start + step, None].expand_as(similarities)
                best.scatter_reduce_(0, where, similarities, reduce="amax")
        return best[:count]

    def _pairs(
        self, queries: Tensor, query_texts: Texts, documents: Tensor, document_texts: Texts, row_mask: Mask | None
    ) -> Tensor:
        """Scores [P] of pairs."""
        scores = queries.new_zeros(len(query_texts))
        for start, stop in _blocks_of_pairs(query_texts.lengths, document_texts.lengths):
            pairs = slice(start, stop)
            parts = [side.part(start, stop) for side in (query_texts, document_texts)]
            if stop - start == 1:
                scores[pairs] = self._matrix(queries, parts[0], documents, parts[1], row_mask)[0]
            else:
                scores[pairs] = _few_pairs(queries, parts[0], documents, parts[1], row_mask)
        return scores


def _spans(documents: Tensor, texts: Texts, row_mask: Mask | None) -> Iterator[tuple[Tensor, Counts]]:
    """Yields rows [N, D] that lie together, and the number of each row's text [N]: n for rows that do not count."""
    there = np.flatnonzero(texts.lengths)
    if not len(there):
        return
    starts, lengths = texts.starts[there], texts.lengths[there]
    breaks = np.flatnonzero(starts[1:] != starts[:-1] + lengths[:-1]) + 1
    rows, text_of = row_ranges(starts, lengths), np.repeat(there, lengths)
    if row_mask is not None:
        text_of = np.where(row_mask[rows], text_of, len(texts))
    if len(rows) < SPAN_ROWS * len(breaks):
        yield documents.index_select(0, to_device(torch.from_numpy(rows), documents.device)), text_of
        return
    ends = np.concatenate([[0], np.cumsum(lengths)])
    edges = [0, *ends[breaks].tolist(), len(rows)]
    for start, stop in pairwise(edges):
        yield documents[rows[start] : rows[start] + stop - start], text_of[start:stop]


def _blocks_of_pairs(query_rows: Counts, document_rows: Counts) -> Iterator[tuple[int, int]]:
    """Yields ranges of at least one pair whose similarities, with room for the longest query, fit into a block."""
    start = rows = longest = 0
    for pair, (query_length, document_length) in enumerate(
        zip(query_rows.tolist(), document_rows.tolist(), strict=True)
    ):
        # A pair takes a row of similarities for each of its document's rows, and one of maxima.
        if pair > start and (rows + document_length + 1) * max(longest, query_length) > BLOCK_ELEMENTS:
            yield start, pair
            start, rows, longest = pair, 0, 0
        rows, longest = rows + document_length + 1, max(longest, query_length)
    yield start, len(query_rows)


def _few_pairs(
    queries: Tensor, query_texts: Texts, documents: Tensor, document_texts: Texts, row_mask: Mask | None
) -> Tensor:
    """Scores [P] of a few pairs: a product for each pair into its place, then one maximum and one sum for all."""
    longest = int(query_texts.lengths.max())
    ends = np.cumsum(document_texts.lengths)
    similarities = queries.new_empty(int(ends[-1]), longest)
    pairs = zip(
        query_texts.starts,
        query_texts.lengths,
        document_texts.starts,
        document_texts.lengths,
        ends - document_texts.lengths,
        strict=True,
    )
    for query, width, document, rows, place in pairs:
        torch.mm(
            documents[document : document + rows],
            queries[query : query + width].T,
            out=similarities[place : place + rows, :width],
        )
    text_of = np.repeat(np.arange(len(document_texts)), document_texts.lengths)
    if row_mask is not None:
        text_of = np.where(
            row_mask[row_ranges(document_texts.starts, document_texts.lengths)], text_of, len(document_texts)
        )
    best = similarities.new_full((len(document_texts) + 1, longest), float("-inf"))
    text_of_row = to_device(torch.from_numpy(text_of), best.device)
    best.scatter_reduce_(0, text_of_row[:, None].expand_as(similarities), similarities, reduce="amax")
    beyond = to_device(torch.from_numpy(np.arange(longest) >= query_texts.lengths[:, None]), best.device)
    return best[:-1].masked_fill_(beyond, 0.0).sum(dim=1)

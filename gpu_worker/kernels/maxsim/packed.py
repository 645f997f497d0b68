"""MaxSim over packed rows: one product for many documents, then a maximum a segment. No padding, bounded memory.

Rows are read where they lie: texts that are neighbours make one span, and only where spans are too short to be worth a
product each are their rows gathered first. Rows that do not count go to a segment of their own.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from gpu_worker.kernels.maxsim.comparison import Comparison, Mask, Texts
from gpu_worker.kernels.maxsim.reference import EMPTY_DOCUMENT
from gpu_worker.ragged.batch import Counts, row_ranges
from gpu_worker.ragged.upload import to_device
from shared.vectors import Layout

BLOCK_ELEMENTS = 16_384 * 32
"""Similarities in memory at once: 16k document rows with a query of 32 rows stay in the processor's cache."""
BEST_ELEMENTS = 4_194_304
"""Maxima in memory at once, one a document and query row."""
SPAN_ROWS = 256
"""Where spans have fewer rows on average, they are copied together first: a product each would cost more in calls than
the copy (a guess by the time of a call; nothing here depends on it but speed)."""

Product = Callable[[Tensor, Tensor], Tensor]
"""document rows [N, D], query rows [q, D] -> similarities [N, q]."""


def plain(rows: Tensor, queries: Tensor) -> Tensor:
    """By whatever library PyTorch takes for products."""
    return rows @ queries.T


def onednn(rows: Tensor, queries: Tensor) -> Tensor:
    """By oneDNN, with the queries as a layer's weight; private to PyTorch (see `model/linear.py`)."""
    similarities: Tensor = torch.ops.mkldnn._linear_pointwise(rows, queries, None, "none", [], "")
    return similarities


class PackedMaxSim:
    """The `comparison.MaxSimKernel` of processors, and of devices without a kernel."""

    def __init__(self, product: Product = plain) -> None:
        self._product = product
        self.name = "packed (onednn)" if product is onednn else "packed (torch)"

    def __call__(
        self, queries: Tensor, documents: Tensor, comparisons: Sequence[Comparison], kept: Mask | None = None
    ) -> Tensor:
        """See `comparison.MaxSimKernel`; converts half precision to float32."""
        queries, documents = queries.float(), documents.float()
        scores = [queries.new_empty(0)]
        for comparison in comparisons:
            compare = self._pairs if comparison.layout is Layout.PAIRS else self._matrix
            found = compare(queries, comparison.queries, documents, comparison.documents, kept)
            empty = comparison.documents.counted(kept) == 0
            if empty.any():
                found.masked_fill_(to_device(torch.from_numpy(empty), found.device), EMPTY_DOCUMENT)
            scores.append(found.flatten())
        return torch.cat(scores)

    def _matrix(self, queries: Tensor, asked: Texts, documents: Tensor, found: Texts, kept: Mask | None) -> Tensor:
        """[Q, S]."""
        device = queries.device
        scores = torch.zeros(len(asked), len(found), device=device)
        rows = to_device(torch.from_numpy(row_ranges(asked.starts, asked.lengths)), device)
        query_of = to_device(torch.from_numpy(np.repeat(np.arange(len(asked)), asked.lengths)), device)
        step = max(32, BEST_ELEMENTS // max(1, len(found)))
        for start in range(0, len(rows), step):
            part = queries.index_select(0, rows[start : start + step])
            best = self._best(part, documents, found, kept)
            scores.index_add_(0, query_of[start : start + step], best.T.contiguous())
        return scores

    def _best(self, queries: Tensor, documents: Tensor, found: Texts, kept: Mask | None) -> Tensor:
        """[S, q] the largest product of each query row with a row of each document that counts; -inf for none."""
        count, step = len(found), max(1, BLOCK_ELEMENTS // len(queries))
        best = queries.new_full((count + 1, len(queries)), float("-inf"))
        for rows, text_of in _spans(documents, found, kept):
            segments = to_device(torch.from_numpy(text_of), queries.device)
            for start in range(0, len(rows), step):
                similarities = self._product(rows[start : start + step], queries)
                where = segments[start : start + step, None].expand_as(similarities)
                best.scatter_reduce_(0, where, similarities, reduce="amax")
        return best[:count]

    def _pairs(self, queries: Tensor, asked: Texts, documents: Tensor, found: Texts, kept: Mask | None) -> Tensor:
        """[P]."""
        scores = queries.new_zeros(len(asked))
        for start, stop in _blocks_of_pairs(asked.lengths, found.lengths):
            pairs = slice(start, stop)
            some = [each.part(start, stop) for each in (asked, found)]
            if stop - start == 1:
                scores[pairs] = self._matrix(queries, some[0], documents, some[1], kept)[0]
            else:
                scores[pairs] = _few_pairs(queries, some[0], documents, some[1], kept)
        return scores


def _spans(documents: Tensor, texts: Texts, kept: Mask | None) -> Iterator[tuple[Tensor, Counts]]:
    """Rows [N, D] that lie together, and to which text each belongs [N]; n for those that do not count."""
    there = np.flatnonzero(texts.lengths)
    if not len(there):
        return
    starts, lengths = texts.starts[there], texts.lengths[there]
    breaks = np.flatnonzero(starts[1:] != starts[:-1] + lengths[:-1]) + 1
    rows, text_of = row_ranges(starts, lengths), np.repeat(there, lengths)
    if kept is not None:
        text_of = np.where(kept[rows], text_of, len(texts))
    if len(rows) < SPAN_ROWS * len(breaks):
        yield documents.index_select(0, to_device(torch.from_numpy(rows), documents.device)), text_of
        return
    ends = np.concatenate([[0], np.cumsum(lengths)])
    edges = [0, *ends[breaks].tolist(), len(rows)]
    for start, stop in pairwise(edges):
        yield documents[rows[start] : rows[start] + stop - start], text_of[start:stop]


def _blocks_of_pairs(query_rows: Counts, document_rows: Counts) -> Iterator[tuple[int, int]]:
    """Ranges of pairs whose similarities, with room for the longest query, fit into a block; at least one pair each."""
    start = rows = longest = 0
    for pair, (asked, found) in enumerate(zip(query_rows.tolist(), document_rows.tolist(), strict=True)):
        # A pair takes a row of similarities for each of its document's rows, and one of maxima.
        if pair > start and (rows + found + 1) * max(longest, asked) > BLOCK_ELEMENTS:
            yield start, pair
            start, rows, longest = pair, 0, 0
        rows, longest = rows + found + 1, max(longest, asked)
    yield start, len(query_rows)


def _few_pairs(queries: Tensor, asked: Texts, documents: Tensor, found: Texts, kept: Mask | None) -> Tensor:
    """[P]: a product a pair, each into its place, then one maximum and one sum for all."""
    longest = int(asked.lengths.max())
    ends = np.cumsum(found.lengths)
    similarities = queries.new_empty(int(ends[-1]), longest)
    pairs = zip(asked.starts, asked.lengths, found.starts, found.lengths, ends - found.lengths, strict=True)
    for query, width, document, rows, place in pairs:
        torch.mm(
            documents[document : document + rows],
            queries[query : query + width].T,
            out=similarities[place : place + rows, :width],
        )
    text_of = np.repeat(np.arange(len(found)), found.lengths)
    if kept is not None:
        text_of = np.where(kept[row_ranges(found.starts, found.lengths)], text_of, len(found))
    best = similarities.new_full((len(found) + 1, longest), float("-inf"))
    segments = to_device(torch.from_numpy(text_of), best.device)
    best.scatter_reduce_(0, segments[:, None].expand_as(similarities), similarities, reduce="amax")
    beyond = to_device(torch.from_numpy(np.arange(longest) >= asked.lengths[:, None]), best.device)
    return best[:-1].masked_fill_(beyond, 0.0).sum(dim=1)

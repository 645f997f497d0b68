"""The work of a kernel as one table of numbers: which query rows meet which document rows. numpy only.

A pair is a query and a document; a work item is a pair and a chunk of its document. One row of the table
describes one work item completely, so that a program on the device needs one short read before it knows its addresses.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu_worker.kernels.maxsim.comparison import Comparison, Mask
from gpu_worker.ragged.batch import Counts
from shared.vectors import Layout

FIELDS = 8
"""Numbers in a work item: 32 bytes, which a device reads at once."""
DOCUMENT, DOCUMENT_ROWS, QUERY, QUERY_ROWS, SCORE, CHUNKS, SCRATCH, COUNTED = range(8)
"""Columns: first row and number of rows of the chunk and of the query; place of the score; number of chunks of the
document and, if more than one, the start of their common scratch; whether any row of the document counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTable:
    """A table of I work items, `items` [I, 8] int32. They give `scores` scores and need `scratch` int32 to join chunks.

    The scratch of a split pair is one counter, then one maximum a query row (one if there is no query row).
    """

    items: npt.NDArray[np.int32]
    scores: int
    scratch: int

    @classmethod
    def of(cls, comparisons: Sequence[Comparison], chunk_rows: int, row_mask: Mask | None = None) -> "PairTable":
        """Lists all pairs of all comparisons, with documents cut into chunks of at most `chunk_rows` rows.

        `row_mask` selects the document rows that count. Every pair has a work item, even if its document is empty. Work
        items of one document are neighbours: all but the first find its rows in the device's cache.
        """
        ends = np.cumsum([0] + [comparison.count for comparison in comparisons])
        pairs = [
            _pairs(comparison, int(first), row_mask) for comparison, first in zip(comparisons, ends[:-1], strict=True)
        ]
        wide = np.concatenate([np.empty((0, FIELDS), np.int64), *pairs])
        wide[:, CHUNKS] = np.maximum(-(-wide[:, DOCUMENT_ROWS] // chunk_rows), 1)
        needs = np.where(wide[:, CHUNKS] > 1, 1 + np.maximum(wide[:, QUERY_ROWS], 1), 0)
        wide[:, SCRATCH] = np.cumsum(needs) - needs
        assert wide.max(initial=0) < 2**31  # 32 bits are enough for rows: no device holds two billion of them
        items = _chunks(wide.astype(np.int32), chunk_rows)
        return cls(items=items, scores=int(ends[-1]), scratch=int(needs.sum()))


def _pairs(comparison: Comparison, first: int, row_mask: Mask | None) -> Counts:
    """Lists the pairs [P, 8] of a comparison whose scores begin at `first`; chunks and scratch are not filled in."""
    queries, documents = np.arange(len(comparison.queries)), np.arange(len(comparison.documents))
    scores = np.arange(comparison.count)
    if comparison.layout is Layout.MATRIX:
        # All queries of a document, then those of the next.
        scores = scores.reshape(len(queries), len(documents)).T.ravel()
        queries, documents = np.tile(queries, len(documents)), np.repeat(documents, len(queries))
    table = np.zeros((comparison.count, FIELDS), np.int64)
    table[:, DOCUMENT] = comparison.documents.starts[documents]
    table[:, DOCUMENT_ROWS] = comparison.documents.lengths[documents]
    table[:, QUERY] = comparison.queries.starts[queries]
    table[:, QUERY_ROWS] = comparison.queries.lengths[queries]
    table[:, SCORE] = first + scores
    table[:, COUNTED] = comparison.documents.counted(row_mask)[documents] > 0
    return table


def _chunks(pairs: npt.NDArray[np.int32], chunk_rows: int) -> npt.NDArray[np.int32]:
    """Cuts pairs [P, 8] into work items [I, 8]."""
    chunks = pairs[:, CHUNKS]
    if chunks.max(initial=1) == 1:
        return pairs
    items = np.repeat(pairs, chunks, axis=0)
    before = (np.arange(len(items)) - np.repeat(np.cumsum(chunks) - chunks, chunks)) * chunk_rows
    items[:, DOCUMENT] += before.astype(np.int32)
    items[:, DOCUMENT_ROWS] = np.minimum(items[:, DOCUMENT_ROWS] - before, chunk_rows)
    return items

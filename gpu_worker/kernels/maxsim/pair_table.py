"""What a kernel has to do, as one table of numbers: which query rows meet which document rows. numpy only.

A pair is a query and a document; a work item is a pair and a chunk of its document. One row of the table says all
about one work item, so that a program on the device needs one short read before it knows its addresses.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu_worker.kernels.maxsim.comparison import Comparison, Mask
from gpu_worker.ragged.batch import Counts
from shared.vectors import Layout

FIELDS = 8
"""Numbers a work item: 32 bytes, which is what a device reads at once."""
DOCUMENT, DOCUMENT_ROWS, QUERY, QUERY_ROWS, SCORE, CHUNKS, SCRATCH, COUNTED = range(8)
"""First row and number of rows of the chunk and of the query; where the score goes; how many chunks the document has
and, if more than one, where their common scratch begins; whether a row of the document counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTable:
    """I work items, `items` [I, 8] int32; they give `scores` scores and need `scratch` int32 to join chunks.

    The scratch of a split pair is one counter, then one maximum a query row (one if there is no query row).
    """

    items: npt.NDArray[np.int32]
    scores: int
    scratch: int

    @classmethod
    def of(cls, comparisons: Sequence[Comparison], chunk_rows: int, kept: Mask | None = None) -> "PairTable":
        """All pairs of all comparisons, documents cut into chunks of at most `chunk_rows` rows.

        `kept` are the document rows that count.

        Every pair has a work item, if its document is empty too. Those of one document are neighbours: all but the
        first find its rows in the device's cache.
        """
        ends = np.cumsum([0] + [comparison.count for comparison in comparisons])
        pairs = [_pairs(each, int(first), kept) for each, first in zip(comparisons, ends[:-1], strict=True)]
        wide = np.concatenate([np.empty((0, FIELDS), np.int64), *pairs])
        wide[:, CHUNKS] = np.maximum(-(-wide[:, DOCUMENT_ROWS] // chunk_rows), 1)
        needs = np.where(wide[:, CHUNKS] > 1, 1 + np.maximum(wide[:, QUERY_ROWS], 1), 0)
        wide[:, SCRATCH] = np.cumsum(needs) - needs
        assert wide.max(initial=0) < 2**31  # 32 bits hold rows, of which two billion fit on no device, not elements
        items = _chunks(wide.astype(np.int32), chunk_rows)
        return cls(items=items, scores=int(ends[-1]), scratch=int(needs.sum()))


def _pairs(comparison: Comparison, first: int, kept: Mask | None) -> Counts:
    """[P, 8] the pairs of one comparison, whose scores begin at `first`; chunks and scratch are not filled in."""
    queries, documents = np.arange(len(comparison.queries)), np.arange(len(comparison.documents))
    scores = np.arange(comparison.count)
    if comparison.layout is Layout.MATRIX:
        scores = scores.reshape(len(queries), len(documents)).T.ravel()  # all queries of a document, then the next's
        queries, documents = np.tile(queries, len(documents)), np.repeat(documents, len(queries))
    table = np.zeros((comparison.count, FIELDS), np.int64)
    table[:, DOCUMENT] = comparison.documents.starts[documents]
    table[:, DOCUMENT_ROWS] = comparison.documents.lengths[documents]
    table[:, QUERY] = comparison.queries.starts[queries]
    table[:, QUERY_ROWS] = comparison.queries.lengths[queries]
    table[:, SCORE] = first + scores
    table[:, COUNTED] = comparison.documents.counted(kept)[documents] > 0
    return table


def _chunks(pairs: npt.NDArray[np.int32], chunk_rows: int) -> npt.NDArray[np.int32]:
    """[I, 8] the work items of [P, 8] pairs."""
    chunks = pairs[:, CHUNKS]
    if chunks.max(initial=1) == 1:
        return pairs
    items = np.repeat(pairs, chunks, axis=0)
    before = (np.arange(len(items)) - np.repeat(np.cumsum(chunks) - chunks, chunks)) * chunk_rows
    items[:, DOCUMENT] += before.astype(np.int32)
    items[:, DOCUMENT_ROWS] = np.minimum(items[:, DOCUMENT_ROWS] - before, chunk_rows)
    return items

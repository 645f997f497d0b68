"""Jobs whose documents have their token rows pooled on the host: Encode, and Score by late interaction.

Steps bring the rows to the host. They are pooled in a thread of their own, while the device computes the next step.
What is left of a document is so small that it is compared there too.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from gpu_worker.engine.jobs.job import EncodeJob, PoolingJob, Scores, TextJob, averaged
from gpu_worker.engine.jobs.score import costs_with_comparing, groups_of
from gpu_worker.engine.jobs.units import WHOLE, PieceLimits
from gpu_worker.engine.step.outputs import SliceRows, Wanted
from gpu_worker.engine.step.rows import RowFormat
from gpu_worker.engine.step.sequences import Sequences
from gpu_worker.kernels.maxsim.maxsim_kernels import EMPTY_DOCUMENT
from gpu_worker.kernels.rows.token_pooling import Floats, pool, unit
from gpu_worker.model.heads.heads import Heads
from gpu_worker.ragged.batch import Counts
from shared.jobs import Encode, JobResult, Rows, Score
from shared.packing import pack
from shared.vectors import DataType, Layout, OutputKind

PAIR_FLOPS = {"cpu": 1_000}
ACCELERATOR_PAIR_FLOPS = 2_000_000
"""Operations of the device in the time in which the host clusters a pair of rows, as an estimate: 30 ns."""


def clustering_costs(lengths: Counts, device: str, flops_per_token: float) -> Counts:
    """The cost of pooling documents of `lengths` [S] tokens, in tokens of the model. `device`: its device's type."""
    flops = PAIR_FLOPS.get(device, ACCELERATOR_PAIR_FLOPS)
    costs: Counts = (lengths * lengths * (flops / flops_per_token)).astype(np.int64)
    return costs


class PooledEncodeJob(EncodeJob, PoolingJob):
    """An open Encode whose token rows are pooled; all other outputs are as in any Encode."""

    def __init__(
        self,
        sequences: Sequences,
        work: Encode,
        heads: Heads,
        sparse_cost: Callable[[int], int],
        clustering: Counts,
        limits: PieceLimits = WHOLE,
    ) -> None:
        """`clustering`: cost in tokens of pooling each sequence, [S]."""
        assert work.pooling is not None
        assert heads.multi_vector is not None
        others = replace(work, outputs=work.outputs - {OutputKind.MULTI_VECTOR}, pooling=None)
        super().__init__(sequences, others, heads, sparse_cost, limits)
        self._pooling, self._data_type = work.pooling, work.data_type
        self._width = work.dimensions or heads.multi_vector.width
        rows = RowFormat(dimensions=work.dimensions, unit=True, data_type=DataType.FLOAT32)
        self.wanted = self.wanted._replace(tokens=rows)
        self.costs = self.units.costs_with_ends(self.costs, clustering)
        self._pooled: dict[int, Rows] = {}

    def pool(self, slice_rows: SliceRows) -> None:
        """Pools and packs the rows of each sequence."""
        if _finite(slice_rows):
            for number, rows in _token_rows(slice_rows):
                slice_rows.pooled[number] = pack(pool(rows, self._pooling), self._data_type)

    def put(self, slice_rows: SliceRows) -> None:
        """Puts the vectors into the tables."""
        super().put(slice_rows)
        self.finite &= _finite(slice_rows)
        self._pooled |= slice_rows.pooled

    def result(self) -> JobResult:
        """Vectors of all sequences. Raises Internal where a number is not finite."""
        result = super().result()
        texts = [self._pooled[number] for number in range(len(self.sequences))]
        row_bytes = self._data_type.row_bytes(self._width)
        rows = Rows(
            dimensions=self._width,
            data=b"".join(text.data for text in texts),
            scales=b"".join(text.scales for text in texts),
        )
        return replace(result, tokens=rows, row_lengths=tuple(len(text.data) // row_bytes for text in texts))


class PooledScoreJob(TextJob, PoolingJob):
    """An open Score by late interaction over pooled documents. Queries are not pooled."""

    def __init__(
        self,
        sequences: Sequences,
        work: Score,
        heads: Heads,
        flops_per_token: float,
        clustering: Counts,
        limits: PieceLimits = WHOLE,
    ) -> None:
        """`clustering`: cost in tokens of pooling each sequence, [S]; that of queries does not count."""
        assert work.pooling is not None
        assert heads.multi_vector is not None
        super().__init__(sequences, groups_of(sequences, work), limits)
        self._work, self._pooling = work, work.pooling
        self.wanted = Wanted(tokens=RowFormat(unit=work.unit_rows, data_type=DataType.FLOAT32))
        costs = costs_with_comparing(self, work, heads.multi_vector.width, flops_per_token)
        of_documents = np.where(np.arange(len(sequences)) < work.queries, 0, clustering)
        self.costs = self.units.costs_with_ends(costs, of_documents)
        self.scores: Scores = np.empty(work.layout.shape(work.queries, len(sequences) - work.queries), np.float32)
        self._queries: dict[int, Floats] = {}

    def pool(self, slice_rows: SliceRows) -> None:
        """Keeps the rows of new queries; pools those of documents, and compares them with all queries or their own."""
        rows, queries = dict(_token_rows(slice_rows)), self._work.queries
        # Copies: views would keep the rows of all documents of the step beside them.
        self._queries |= {number: rows[number].copy() for number in rows if number < queries}
        for number in (number for number in rows if number >= queries and _finite(slice_rows)):
            # Queries are compared as `unit_rows` says, while rows are clustered at unit length.
            document = pool(rows[number] if self._work.unit_rows else unit(rows[number]), self._pooling)
            column = number - queries
            partners = (column,) if self._work.layout is Layout.PAIRS else range(queries)
            slice_rows.pooled[column] = [max_sim(self._queries[partner], document) for partner in partners]

    def put(self, slice_rows: SliceRows) -> None:
        """Puts the scores into the table."""
        self.finite &= _finite(slice_rows)
        for document, scores in slice_rows.pooled.items():
            if self._work.layout is Layout.PAIRS:
                self.scores[document] = scores
            else:
                self.scores[:, document] = scores

    def result(self) -> JobResult:
        """Scores of all documents. Raises Internal where a number is not finite."""
        self.finite &= bool(np.isfinite(self.scores).all())
        self.check_finite()
        scores, work = self.scores, self._work
        if work.mean:
            counts = self.sequences.selected_counts
            scores = averaged(scores, counts[: work.queries], counts[work.queries :], work.layout)
        return JobResult(scores=scores.astype("<f4").tobytes())


def max_sim(query: Floats, document: Floats) -> float:
    """The sum, over the rows of a query [q, D], of the largest product with a row of a document [d, D].

    Queries are multiplied one by one: of several at once, a product may have other bits.
    """
    return float((query @ document.T).max(axis=1).sum()) if len(document) else EMPTY_DOCUMENT


def _token_rows(slice_rows: SliceRows) -> Iterator[tuple[int, Floats]]:
    """The token rows [n, D] of each sequence of a slice, by its number."""
    packed, values = slice_rows.packed, slice_rows.tokens.values.view("<f4")
    counts = packed.sequences.selected_counts[packed.numbers]
    return zip(packed.numbers.tolist(), np.split(values, np.cumsum(counts)[:-1]), strict=True)


def _finite(slice_rows: SliceRows) -> bool:
    """Whether the rows are numbers; others cannot be clustered, and fail their job."""
    return slice_rows.finite and slice_rows.tokens.finite

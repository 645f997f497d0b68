"""Jobs whose results are rows of their sequences: vectors of sequences or of token ranges, logits of sequences or of
tokens."""

from collections.abc import Callable

import numpy as np

from gpu_worker.engine.jobs.job import TextJob, by_length
from gpu_worker.engine.jobs.units import WHOLE, PieceLimits
from gpu_worker.engine.step.outputs import SliceRows, Wanted
from gpu_worker.engine.step.rows import RowFormat, Table, byte_view
from gpu_worker.engine.step.sequences import Sequences
from gpu_worker.model.heads import sparse_vectors
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.heads.sparse_vectors import Vector
from shared.jobs import Classify, Encode, Job, JobResult
from shared.query_table import QueryTable
from shared.vectors import OutputKind


class EncodeJob(TextJob):
    """An open Encode: a table for each kind of vector that was asked for, None for the others."""

    def __init__(
        self,
        sequences: Sequences,
        work: Encode,
        heads: Heads,
        sparse_cost: Callable[[int], int] = int,
        limits: PieceLimits = WHOLE,
    ) -> None:
        """`sparse_cost`: cost in tokens of the sparse vector of a sequence of so many tokens, beside the encoder's."""
        super().__init__(sequences, by_length(sequences), limits)
        self.work = work
        self.dense: Table | None = None
        self.tokens: Table | None = None
        self.sparse: list[Vector] | None = None
        dense_rows: RowFormat | None = None
        token_rows: RowFormat | None = None
        if OutputKind.DENSE in work.outputs:
            assert heads.dense is not None
            dense_rows = RowFormat(dimensions=work.dimensions, unit=work.normalize, data_type=work.data_type)
            self.dense = Table(len(sequences.pooled), work.dimensions or heads.dense.width, work.data_type)
            if len(sequences.pooled) > len(sequences):
                self.costs = self.units.costs_with_rows(self.costs, sequences.pooled.counts)
        if OutputKind.MULTI_VECTOR in work.outputs:
            assert heads.multi_vector is not None
            token_rows = RowFormat(dimensions=work.dimensions, unit=work.normalize_tokens, data_type=work.data_type)
            width = work.dimensions or heads.multi_vector.width
            self.tokens = Table(int(sequences.selected.sum()), width, work.data_type)
        if OutputKind.SPARSE in work.outputs:
            self.sparse = [sparse_vectors.NOTHING] * len(sequences)
            extra = [sparse_cost(tokens) for tokens in self.units.tokens]
            self.costs = [cost + more for cost, more in zip(self.costs, extra, strict=True)]
        top_k = None if self.sparse is None else work.sparse_top_k
        self.wanted = Wanted(dense=dense_rows, tokens=token_rows, sparse_top_k=top_k)

    def put(self, slice_rows: SliceRows) -> None:
        """Puts the vectors into the tables."""
        sequences, numbers = self.sequences, slice_rows.packed.numbers
        self.finite &= slice_rows.finite
        if self.dense is not None:
            self.dense.put_rows(sequences.pooled.rows_of(numbers), slice_rows.dense)
        if self.tokens is not None:
            self.tokens.put_rows(sequences.selected_places(numbers), slice_rows.tokens)
        if self.sparse is not None:
            vectors, finite = slice_rows.sparse.vectors()
            self.finite &= finite
            for number, vector in zip(numbers.tolist(), vectors, strict=True):
                self.sparse[number] = vector

    def result(self) -> JobResult:
        """Vectors of all sequences. Raises Internal where a number is not finite."""
        tables = [table for table in (self.dense, self.tokens) if table is not None]
        self.finite &= all(table.finite for table in tables)
        self.check_finite()
        sequences, work = self.sequences, self.work
        token_ids = sequences.ids[sequences.selected] if self.tokens is not None and work.token_ids else None
        return JobResult(
            dense=None if self.dense is None else self.dense.all_rows(),
            sparse=None if self.sparse is None else sparse_vectors.pack(self.sparse),
            tokens=None if self.tokens is None else self.tokens.all_rows(),
            row_lengths=() if self.tokens is None else tuple(sequences.selected_counts.tolist()),
            token_ids=b"" if token_ids is None else token_ids.astype("<i4").tobytes(),
        )


class LookUpJob(TextJob):
    """An open Encode of queries of inference-free SPLADE: one unit without a sequence, since a table has their weights.

    The table is too large for frontends, which look queries up by themselves otherwise.
    """

    def __init__(self, job: Job, work: Encode, table: QueryTable) -> None:
        super().__init__(Sequences(job), [()])
        self.costs = [1]
        self._tokens, self._top_k, self._table = job.tokens, work.sparse_top_k, table

    def put(self, slice_rows: SliceRows) -> None:
        """The step made nothing."""

    def result(self) -> JobResult:
        """Vectors of all sequences."""
        return JobResult(sparse=self._table.look_up(self._tokens, self._top_k))


class ClassifyJob(TextJob):
    """An open Classify: `logits` are [S, labels], or [selected tokens, labels]."""

    def __init__(self, sequences: Sequences, work: Classify, labels: int, limits: PieceLimits = WHOLE) -> None:
        """`sequences`: where tokens are classified, those tokens are selected."""
        super().__init__(sequences, by_length(sequences), limits)
        self.work = work
        self.wanted = Wanted(logits=not work.tokens, token_logits=work.tokens)
        rows = int(sequences.selected.sum()) if work.tokens else len(sequences)
        self.logits = np.empty((rows, labels), dtype=np.float32)

    def put(self, slice_rows: SliceRows) -> None:
        """Puts the logits into the table."""
        numbers = slice_rows.packed.numbers
        self.finite &= slice_rows.finite
        self.logits[self.sequences.selected_places(numbers) if self.work.tokens else numbers] = slice_rows.logits.values

    def result(self) -> JobResult:
        """Logits of all sequences. Raises Internal where a number is not finite."""
        self.finite &= bool(np.isfinite(self.logits).all())
        self.check_finite()
        counts = tuple(self.sequences.selected_counts.tolist()) if self.work.tokens else ()
        return JobResult(scores=byte_view(self.logits), row_lengths=counts)

"""Encode jobs: vectors of every sequence, or of token ranges of them."""

from collections.abc import Callable

from gpu_worker.engine.jobs.table import Table
from gpu_worker.engine.jobs.texts import TextJob, by_length
from gpu_worker.engine.jobs.units import WHOLE, PieceLimits
from gpu_worker.engine.step.download import StepDownload
from gpu_worker.engine.step.outputs import Outputs
from gpu_worker.engine.step.row_outputs import RowFormat, RowOutput
from gpu_worker.engine.step.sequences import PackedSequences, Sequences
from gpu_worker.model.heads import sparse_vectors
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.heads.sparse_vectors import Vector
from gpu_worker.ragged.batch import Counts
from gpu_worker.schedule.interface import JobSlice
from shared.jobs import Encode, JobResult
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
        if OutputKind.DENSE in work.outputs:
            assert heads.dense is not None
            self.dense = Table(len(sequences.pooled), work.dimensions or heads.dense.width, work.data_type)
            if len(sequences.pooled) > len(sequences):
                self.costs = self.units.costs_with_rows(self.costs, sequences.pooled.counts)
        if OutputKind.MULTI_VECTOR in work.outputs:
            assert heads.multi_vector is not None
            width = work.dimensions or heads.multi_vector.width
            self.tokens = Table(int(sequences.selected.sum()), width, work.data_type)
        if OutputKind.SPARSE in work.outputs:
            self.sparse = [sparse_vectors.NOTHING] * len(sequences)
            extra = [sparse_cost(tokens) for tokens in self.units.tokens]
            self.costs = [cost + more for cost, more in zip(self.costs, extra, strict=True)]

    def step_slice(self, job_slice: JobSlice, packed: PackedSequences) -> "EncodeSlice":
        """Creates a slice of this job for a step."""
        return EncodeSlice(self, packed)

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


class EncodeSlice:
    """A slice of an Encode in a step; see `StepSlice`."""

    def __init__(self, job: EncodeJob, packed: PackedSequences) -> None:
        self._job, self._packed = job, packed

    def request_outputs(self, outputs: Outputs) -> None:
        """Requests the kinds of vectors that the job has a table for."""
        job, work, packed = self._job, self._job.work, self._packed
        self._outputs = outputs
        self._rows = list[tuple[Table, Counts, RowOutput]]()
        if job.dense is not None:
            row_format = RowFormat(dimensions=work.dimensions, unit=work.normalize, data_type=work.data_type)
            places = job.sequences.pooled.rows_of(packed.numbers)
            self._rows.append((job.dense, places, outputs.request_dense_rows(packed, row_format)))
        if job.tokens is not None:
            row_format = RowFormat(dimensions=work.dimensions, unit=work.normalize_tokens, data_type=work.data_type)
            places = job.sequences.selected_places(packed.numbers)
            self._rows.append((job.tokens, places, outputs.request_token_rows(packed, row_format)))
        wants_sparse = job.sparse is not None
        self._sparse = outputs.request_sparse_vectors(packed, work.sparse_top_k) if wants_sparse else None

    def on_device(self, download: StepDownload) -> None:
        """Computes nothing: vectors are outputs of the step."""

    def on_host(self) -> None:
        """Puts the vectors into the job's tables."""
        job, packed = self._job, self._packed
        job.note_finite(packed, self._outputs)
        for table, places, rows in self._rows:
            table.put_rows(places, rows)
        if job.sparse is not None and self._sparse is not None:
            vectors, finite = self._sparse.vectors()
            job.finite &= finite
            for number, vector in zip(packed.numbers.tolist(), vectors, strict=True):
                job.sparse[number] = vector

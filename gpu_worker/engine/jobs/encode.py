"""Vectors of every sequence."""

from collections.abc import Callable

import numpy as np

from gpu_worker.engine.jobs.table import Table
from gpu_worker.engine.jobs.texts import Deliver, Launch, TextJob, by_length
from gpu_worker.engine.step.outputs import Outputs
from gpu_worker.engine.step.row_outputs import RowForm, RowOutput
from gpu_worker.engine.step.sequences import Member, Sequences
from gpu_worker.engine.step.sparse_outputs import SparseShare
from gpu_worker.model.heads import sparse_vectors
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.heads.sparse_vectors import Vector
from shared.jobs import Encode, JobResult
from shared.vectors import OutputKind


class EncodeJob(TextJob):
    """An Encode on its way."""

    def __init__(
        self, sequences: Sequences, work: Encode, heads: Heads, sparse_cost: Callable[[int], int] = int
    ) -> None:
        """`sparse_cost`: what sparse vectors cost a sequence of so many tokens beside the encoder."""
        super().__init__(sequences, by_length(sequences))
        self._work = work
        self._dense = self._tokens = None
        self._sparse: list[Vector] | None = None
        if OutputKind.DENSE in work.outputs:
            assert heads.dense is not None
            self._dense = Table(len(sequences), work.dimensions or heads.dense.width, work.data_type)
        if OutputKind.MULTI_VECTOR in work.outputs:
            assert heads.multi_vector is not None
            width = work.dimensions or heads.multi_vector.width
            self._tokens = Table(int(sequences.kept.sum()), width, work.data_type)
        if OutputKind.SPARSE in work.outputs:
            self._sparse = [sparse_vectors.NOTHING] * len(sequences)
            self.costs = [cost + sparse_cost(cost) for cost in self.costs]

    def ask(self, start: int, stop: int, member: Member, outputs: Outputs) -> Launch:
        work, puts = self._work, list[Deliver]()
        if self._dense is not None:
            form = RowForm(dimensions=work.dimensions, unit=work.normalize, data_type=work.data_type)
            puts.append(_putting(self._dense, member.chosen, outputs.dense(member, form)))
        if self._tokens is not None:
            form = RowForm(dimensions=work.dimensions, unit=work.normalize_tokens, data_type=work.data_type)
            places = member.sequences.kept_places(member.chosen)
            puts.append(_putting(self._tokens, places, outputs.tokens(member, form)))
        if self._sparse is not None:
            puts.append(self._putting_sparse(member, outputs.sparse(member, work.sparse_top_k)))

        def deliver() -> None:
            self.heed(member, outputs)
            for put in puts:
                put()

        return lambda _: deliver

    def _putting_sparse(self, member: Member, share: SparseShare) -> Deliver:
        def put() -> None:
            assert self._sparse is not None
            vectors, sound = share.vectors()
            self.finite &= sound
            for number, vector in zip(member.chosen.tolist(), vectors, strict=True):
                self._sparse[number] = vector

        return put

    def result(self) -> JobResult:
        tables = [table for table in (self._dense, self._tokens) if table is not None]
        self.finite &= all(table.finite for table in tables)
        self.check()
        sequences, tokens = self.sequences, self._tokens is not None
        return JobResult(
            dense=None if self._dense is None else self._dense.packed(),
            sparse=None if self._sparse is None else sparse_vectors.pack(self._sparse),
            tokens=None if self._tokens is None else self._tokens.packed(),
            row_lengths=tuple(sequences.kept_counts.tolist()) if tokens else (),
            token_ids=sequences.ids[sequences.kept].astype("<i4").tobytes() if tokens and self._work.token_ids else b"",
        )


def _putting(table: Table, places: "np.ndarray[tuple[int], np.dtype[np.int64]]", share: RowOutput) -> Deliver:
    return lambda: table.put(places, share)

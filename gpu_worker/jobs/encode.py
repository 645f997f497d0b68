"""Vectors of every sequence, packed into place as they come."""

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.heads import packing
from gpu_worker.heads import sparse_vectors as sparse
from gpu_worker.heads.skiplist import Keeping
from gpu_worker.jobs.texts import Delivery, Member, TextProgress
from gpu_worker.model.head_building import Heads
from gpu_worker.ragged.batch import Counts
from gpu_worker.step.outputs import Rows
from gpu_worker.step.shipment import Array, Outbox
from shared import jobs
from shared.jobs import Encode, Job, JobResult
from shared.vectors import DataType, OutputKind

Bytes = npt.NDArray[np.uint8]


class _Table:
    """Room for N rows of one width in one data type, and their scales."""

    def __init__(self, rows: int, dimensions: int, data_type: DataType) -> None:
        self.dimensions, self.data_type = dimensions, data_type
        self._data = np.empty((rows, data_type.row_bytes(dimensions)), dtype=np.uint8)
        self._scales = np.empty((rows, data_type.scale_bytes), dtype=np.uint8)
        self.finite = True

    def ship(self, rows: Tensor, places: Counts, outbox: Outbox) -> Delivery:
        """Packs float32 rows [n, W] on the device; they are put at `places` [n]."""
        packed, scales = packing.pack(rows[:, : self.dimensions], self.data_type)
        slots = outbox.add(packed), None if scales is None else outbox.add(scales)
        sound = outbox.add(torch.isfinite(rows).all().reshape(1))

        def deliver(arrays: list[Array]) -> None:
            self.finite &= bool(arrays[sound][0])
            self._data[places] = arrays[slots[0]]
            if slots[1] is not None:
                self._scales[places] = arrays[slots[1]].view(np.uint8).reshape(-1, 4)

        return deliver

    def packed(self) -> jobs.Rows:
        return jobs.Rows(dimensions=self.dimensions, data=self._data.tobytes(), scales=self._scales.tobytes())


class EncodeProgress(TextProgress):
    """An Encode on its way."""

    def __init__(
        self,
        job: Job,
        work: Encode,
        heads: Heads,
        keeping: Keeping,
        sparse_cost: Callable[[int], int] = int,
        skip: Counts | None = None,
    ) -> None:
        """`sparse_cost`: what sparse vectors cost a sequence of so many tokens beside the trunk."""
        order = np.argsort(job.tokens.lengths, kind="stable").tolist()
        super().__init__(job, [(index,) for index in order], skip)
        self.work, self.dimensions = work, work.dimensions
        self.unit_dense, self.unit_tokens = work.normalize, work.normalize_tokens
        self._dense = self._tokens = None
        self._sparse: list[sparse.Vector] | None = None
        if OutputKind.DENSE in work.outputs:
            assert heads.dense is not None
            self._dense = _Table(len(self.lengths), work.dimensions or heads.dense.width, work.data_type)
        if OutputKind.MULTI_VECTOR in work.outputs:
            assert heads.multi_vector is not None
            self.kept = keeping(self.ids, self.offsets, work.input_type)
            self._tokens = _Table(int(self.kept.sum()), work.dimensions or heads.multi_vector.width, work.data_type)
        if OutputKind.SPARSE in work.outputs:
            assert heads.sparse is not None
            self.wants_sparse = True
            self._sparse = [sparse.NOTHING] * len(self.lengths)
            self.costs = [cost + sparse_cost(cost) for cost in self.costs]
        self._result: JobResult | None = None

    def compute(self, member: Member, rows: Rows, outbox: Outbox) -> list[Delivery]:
        deliveries = []
        if self._dense is not None:
            deliveries.append(self._dense.ship(rows.pooled(member.places), member.sequences, outbox))
        if self._tokens is not None:
            kept = rows.tokens(rows.kept_rows(self, member))
            deliveries.append(self._tokens.ship(kept, self.kept_places(member), outbox))
        if self._sparse is not None:
            reading = rows.sparse(self, member, outbox, self.work.sparse_top_k)
            deliveries.append(partial(self._put_sparse, member, reading))
        return deliveries

    def _put_sparse(self, member: Member, reading: sparse.Reading, arrays: list[Array]) -> None:
        assert self._sparse is not None
        for sequence, vector in zip(member.sequences, reading(arrays), strict=True):
            self._sparse[sequence] = vector

    def complete(self) -> None:
        """Serialises, in the device thread, once all rows are there."""
        tokens = self._tokens is not None
        self._result = JobResult(
            dense=None if self._dense is None else self._dense.packed(),
            sparse=None if self._sparse is None else sparse.pack(self._sparse),
            tokens=None if self._tokens is None else self._tokens.packed(),
            row_lengths=tuple(self.kept_counts().tolist()) if tokens else (),
            token_ids=self.ids[self.kept].astype("<i4").tobytes() if tokens and self.work.token_ids else b"",
        )

    def result(self) -> JobResult:
        self.finite &= all(table.finite for table in (self._dense, self._tokens) if table is not None)
        self.check()
        assert self._result is not None
        return self._result

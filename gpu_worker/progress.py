"""Jobs on their way through the steps: in which order they want to be served, and what has come of them.

A unit is what has to be computed in one step: a sequence, or a query with its document. Everything here lies on
the host but the query rows that a rerank keeps from its first step to its last document.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker import packing
from gpu_worker.pooling import Counts
from gpu_worker.ragged_batch import Ids, to_device
from shared.errors import Internal, InvalidInput
from shared.jobs import Encode, Job, JobResult, MaxSim, Rows, Score
from shared.vectors import Layout, OutputKind, ScoringMethod

Bytes = npt.NDArray[np.uint8]


class TextProgress:
    """What jobs over token ids have in common."""

    def __init__(self, job: Job, units: Sequence[tuple[int, ...]]) -> None:
        self.lengths: Counts = np.array(job.tokens.lengths, dtype=np.int64)
        self.offsets: Counts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.ids: Ids = np.frombuffer(job.tokens.ids, dtype="<i4")
        self.skip: Counts = np.array(job.prompt_lengths or [0] * len(self.lengths), dtype=np.int64)
        self.units = units
        self.costs: Sequence[int] = [sum(job.tokens.lengths[each] for each in unit) for unit in units]
        self.served = 0
        self.finite = True

    def sequence(self, index: int) -> Ids:
        """Token ids of one sequence."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def check(self) -> None:
        """Raises Internal where the model gave numbers that are none."""
        if not self.finite:
            raise Internal("the model gave numbers that are not finite")


class EncodeProgress(TextProgress):
    """Vectors of every sequence, packed into place as they come."""

    def __init__(self, job: Job, work: Encode, width: int) -> None:
        """`width`: the model's own dimensions."""
        order = np.argsort(job.tokens.lengths, kind="stable").tolist()
        super().__init__(job, [(index,) for index in order])
        self.work = work
        self.dimensions = work.dimensions or width
        dense = len(self.lengths) if OutputKind.DENSE in work.outputs else 0
        tokens = int(self.offsets[-1]) if OutputKind.MULTI_VECTOR in work.outputs else 0
        self.dense, self.tokens = self._room(dense), self._room(tokens)
        self._result: JobResult | None = None

    def deliver(self, place: tuple[Bytes, ...], index: Counts, rows: Bytes, scales: Bytes | None) -> None:
        """Puts packed rows [N, B] and their scales at the rows `index` [N] of an output."""
        place[0][index] = rows
        if scales is not None:
            place[1][index] = scales.view(np.uint8).reshape(-1, 4)

    def complete(self) -> None:
        """Serialises, in the device thread, once all rows are there."""
        self._result = JobResult(
            dense=self._rows(OutputKind.DENSE, self.dense),
            tokens=self._rows(OutputKind.MULTI_VECTOR, self.tokens),
            row_lengths=tuple(self.lengths.tolist()) if len(self.tokens[0]) else (),
        )

    def result(self) -> JobResult:
        self.check()
        assert self._result is not None
        return self._result

    def _room(self, rows: int) -> tuple[Bytes, ...]:
        kind = self.work.data_type
        return (
            np.empty((rows, kind.row_bytes(self.dimensions)), dtype=np.uint8),
            np.empty((rows, kind.scale_bytes), dtype=np.uint8),
        )

    def _rows(self, kind: OutputKind, place: tuple[Bytes, ...]) -> Rows | None:
        if kind not in self.work.outputs:
            return None
        return Rows(dimensions=self.dimensions, data=place[0].tobytes(), scales=place[1].tobytes())


class ScoreProgress(TextProgress):
    """Scores of queries with documents; sequences 0 to `queries` - 1 are the queries."""

    def __init__(self, job: Job, work: Score, width: int, flops_per_token: float) -> None:
        """`width`: dimensions of the rows that are compared."""
        lengths, queries = job.tokens.lengths, work.queries
        documents = len(lengths) - queries
        if work.layout is Layout.PAIRS:
            pairs = [(index, queries + index) for index in range(queries)]
            units: list[tuple[int, ...]] = sorted(pairs, key=lambda pair: lengths[pair[0]] + lengths[pair[1]])
        else:
            groups = (range(queries), range(queries, len(lengths)))
            units = [(index,) for group in groups for index in sorted(group, key=lengths.__getitem__)]
        super().__init__(job, units)
        self.work = work
        if self.late and work.layout is Layout.MATRIX:
            rows = int(self.lengths[:queries].sum())
            extra = rows * comparing_flops(width) / flops_per_token
            known = [0.0] * queries + [extra] * documents
            self.costs = [cost + int(cost * each) for cost, each in zip(self.costs, known, strict=True)]
        self.scores = np.empty(work.layout.shape(queries, documents), dtype=np.float32)
        self.query_rows: list[tuple[Counts, Tensor]] = []

    @property
    def late(self) -> bool:
        """Whether token rows are compared; else pooled rows, one a text."""
        return self.work.method is ScoringMethod.LATE_INTERACTION

    def rows_of(self, index: Counts) -> Counts:
        """How many rows each of these sequences is compared by."""
        return self.lengths[index] if self.late else np.ones(len(index), dtype=np.int64)

    def complete(self) -> None:
        """Frees the query rows once all documents are scored."""
        self.query_rows = []

    def result(self) -> JobResult:
        self.check()
        return JobResult(scores=self.scores.astype("<f4").tobytes())


class MaxSimProgress:
    """Scores of given vectors; a unit is a document, or a pair."""

    def __init__(self, work: MaxSim, flops_per_token: float) -> None:
        """`flops_per_token`: what a token costs the model, so that given vectors count as much as they take."""
        self.work = work
        self.documents: Counts = np.array(work.documents.lengths, dtype=np.int64)
        self.queries: Counts = np.array(work.queries.lengths, dtype=np.int64)
        pairs = work.layout is Layout.PAIRS
        partners = self.queries if pairs else np.full_like(self.documents, self.queries.sum())
        flops = (self.documents * partners + self.documents) * comparing_flops(work.documents.dimensions)
        self.costs: Sequence[int] = (1 + flops // max(1, int(flops_per_token))).tolist()
        self.served = 0
        shape = work.layout.shape(len(self.queries), len(self.documents))
        self.scores = np.empty(shape, dtype=np.float32)
        self._vectors: tuple[Tensor, Tensor] | None = None

    def vectors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Query and document rows in float32 on the device, of unit length if wanted; made once, in its thread."""
        if self._vectors is None:
            sides = (to_device(packing.unpack(each), device) for each in (self.work.queries, self.work.documents))
            queries, documents = (F.normalize(each, dim=1) if self.work.unit_rows else each for each in sides)
            self._vectors = (queries, documents)
        return self._vectors

    def complete(self) -> None:
        """Frees the rows."""
        self._vectors = None

    def result(self) -> JobResult:
        """Raises InvalidInput where products of large numbers left float32."""
        if not np.isfinite(self.scores).all():
            raise InvalidInput("products of the given vectors overflow float32", field="documents.data")
        return JobResult(scores=self.scores.astype("<f4").tobytes())


def comparing_flops(width: int) -> int:
    """Of one similarity: the product, and a maximum that takes as long as about a hundred more (measured on a CPU)."""
    return 2 * width + 100

"""Scores of queries with documents; sequences 0 to `queries` - 1 of the job are the queries."""

from collections.abc import Callable

import numpy as np

from gpu_worker.heads.skiplist import Keeping
from gpu_worker.jobs.scoring import DensePart, LatePart, ScorePart, SparsePart, comparing_flops
from gpu_worker.jobs.texts import Delivery, Member, TextProgress
from gpu_worker.model.loading import Model
from gpu_worker.ragged.batch import Counts
from gpu_worker.step.outputs import Rows
from gpu_worker.step.shipment import Outbox
from shared.jobs import HybridWeights, Job, JobResult, Score
from shared.vectors import Layout, ScoringMethod


class ScoreProgress(TextProgress):
    """A Score on its way: one part, or the three of a hybrid with their weights."""

    def __init__(
        self,
        job: Job,
        work: Score,
        model: Model,
        keeping: Keeping,
        sparse_cost: Callable[[int], int] = int,
        skip: Counts | None = None,
    ) -> None:
        """`sparse_cost`: what sparse vectors cost a sequence of so many tokens beside the trunk."""
        super().__init__(job, _units(job, work), skip)
        self.work = work
        self.unit_dense = self.unit_tokens = work.unit_rows
        shape = work.layout.shape(work.queries, len(self.lengths) - work.queries)
        hybrid = work.method is ScoringMethod.HYBRID
        weights = work.weights or HybridWeights()
        self._parts: list[tuple[float, ScorePart]] = []
        self._late: LatePart | None = None
        if work.method is ScoringMethod.DENSE or (hybrid and weights.dense):
            self._parts.append((weights.dense, DensePart(work, shape)))
        if work.method is ScoringMethod.LATE_INTERACTION or (hybrid and weights.multi_vector):
            assert model.heads.multi_vector is not None
            self.kept = keeping.of_scores(self.ids, self.offsets, work.queries)
            self._late = LatePart(work, shape, self, mean=work.mean or hybrid)
            self._parts.append((weights.multi_vector, self._late))
            self.costs = self._with_comparing(model.heads.multi_vector.width, model.flops_per_token)
        if work.method is ScoringMethod.SPARSE or (hybrid and weights.sparse):
            self.wants_sparse = True
            extra = [sum(sparse_cost(int(self.lengths[each])) for each in unit) for unit in self.units]
            self.costs = [cost + more for cost, more in zip(self.costs, extra, strict=True)]
            self._parts.append((weights.sparse, SparsePart(work, shape, self)))

    def _with_comparing(self, width: int, flops_per_token: float) -> list[int]:
        """Costs of units with what it takes to compare a document with all queries."""
        if self.work.layout is Layout.PAIRS:
            return list(self.costs)
        queries = self.work.queries
        extra = int(self.lengths[:queries].sum()) * comparing_flops(width, self.work.explain) / flops_per_token
        return [
            cost + int(cost * extra * (unit[0] >= queries)) for cost, unit in zip(self.costs, self.units, strict=True)
        ]

    def compute(self, member: Member, rows: Rows, outbox: Outbox) -> list[Delivery]:
        return [delivery for _, part in self._parts for delivery in part.compute(member, rows, outbox)]

    def complete(self) -> None:
        """Frees the queries' rows once all documents are scored."""
        for _, part in self._parts:
            part.forget()

    def result(self) -> JobResult:
        parts = [(weight, part.scores) for weight, part in self._parts]
        if self.work.method is ScoringMethod.HYBRID:
            total = sum(weight for weight, _ in parts)
            scores = sum((weight / total * each for weight, each in parts), np.zeros_like(parts[0][1]))
        else:
            scores = parts[0][1]
        self.finite &= bool(np.isfinite(scores).all())
        self.check()
        return JobResult(
            scores=scores.astype("<f4").tobytes(),
            winners=self._late.winners.astype("<i4").tobytes() if self._late else b"",
            similarities=self._late.similarities.astype("<f4").tobytes() if self._late else b"",
        )


def _units(job: Job, work: Score) -> list[tuple[int, ...]]:
    """Pairs together; of a matrix first the queries, then the documents, each in ascending length."""
    lengths, queries = job.tokens.lengths, work.queries
    if work.layout is Layout.PAIRS:
        pairs = [(index, queries + index) for index in range(queries)]
        return sorted(pairs, key=lambda pair: lengths[pair[0]] + lengths[pair[1]])
    groups = (range(queries), range(queries, len(lengths)))
    return [(index,) for group in groups for index in sorted(group, key=lengths.__getitem__)]

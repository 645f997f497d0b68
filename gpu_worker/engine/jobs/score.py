"""Scores of queries with documents; sequences 0 to `queries` - 1 of the job are the queries."""

from collections.abc import Callable

import numpy as np

from gpu_worker.engine.jobs.scoring import DenseScoring, LateScoring, Scoring, SparseScoring, comparing_flops
from gpu_worker.engine.jobs.texts import Deliver, Launch, TextJob
from gpu_worker.engine.step.download import StepDownload
from gpu_worker.engine.step.outputs import Outputs
from gpu_worker.engine.step.sequences import Member, Sequences
from gpu_worker.model.heads.heads import Heads
from shared.jobs import HybridWeights, JobResult, Score
from shared.vectors import Layout, ScoringMethod


class ScoreJob(TextJob):
    """A Score on its way: one way to score, or the three of a hybrid with their weights."""

    def __init__(
        self,
        sequences: Sequences,
        work: Score,
        heads: Heads,
        flops_per_token: float,
        sparse_cost: Callable[[int], int] = int,
    ) -> None:
        """`sparse_cost`: what sparse vectors cost a sequence of so many tokens beside the encoder."""
        super().__init__(sequences, _units(sequences, work))
        self._work = work
        shape = work.layout.shape(work.queries, len(sequences) - work.queries)
        hybrid, weights = work.method is ScoringMethod.HYBRID, work.weights or HybridWeights()
        self._scorings: list[tuple[float, Scoring]] = []
        self._late: LateScoring | None = None
        if work.method is ScoringMethod.DENSE or (hybrid and weights.dense):
            self._scorings.append((weights.dense, DenseScoring(work, shape)))
        if self.compares_tokens(work):
            assert heads.multi_vector is not None
            self._late = LateScoring(work, shape, sequences, mean=work.mean or hybrid)
            self._scorings.append((weights.multi_vector, self._late))
            self.costs = self._with_comparing(heads.multi_vector.width, flops_per_token)
        if work.method is ScoringMethod.SPARSE or (hybrid and weights.sparse):
            extra = [sum(sparse_cost(int(sequences.lengths[each])) for each in unit) for unit in self.units]
            self.costs = [cost + more for cost, more in zip(self.costs, extra, strict=True)]
            self._scorings.append((weights.sparse, SparseScoring(work, shape)))

    @staticmethod
    def compares_tokens(work: Score) -> bool:
        """Whether token vectors are compared."""
        late, hybrid = (work.method is each for each in (ScoringMethod.LATE_INTERACTION, ScoringMethod.HYBRID))
        return late or (hybrid and bool((work.weights or HybridWeights()).multi_vector))

    def _with_comparing(self, width: int, flops_per_token: float) -> list[int]:
        """Costs of units with what it takes to compare a document with all queries."""
        if self._work.layout is Layout.PAIRS:
            return list(self.costs)
        queries = self._work.queries
        rows = int(self.sequences.lengths[:queries].sum())
        extra = rows * comparing_flops(width, self._work.explain) / flops_per_token
        return [
            cost + int(cost * extra * (unit[0] >= queries)) for cost, unit in zip(self.costs, self.units, strict=True)
        ]

    def ask(self, start: int, stop: int, member: Member, outputs: Outputs) -> Launch:
        launches = [scoring.ask(member, outputs) for _, scoring in self._scorings]

        def launch(shipment: StepDownload) -> Deliver:
            deliveries = [each(shipment) for each in launches]

            def deliver() -> None:
                self.heed(member, outputs)
                for each in deliveries:
                    each()

            return deliver

        return launch

    def result(self) -> JobResult:
        found = [(weight, scoring.scores) for weight, scoring in self._scorings]
        if self._work.method is ScoringMethod.HYBRID:
            total = sum(weight for weight, _ in found)
            scores = sum((weight / total * each for weight, each in found), np.zeros_like(found[0][1]))
        else:
            scores = found[0][1]
        self.finite &= bool(np.isfinite(scores).all())
        self.check()
        return JobResult(
            scores=scores.astype("<f4").tobytes(),
            winners=self._late.winners.astype("<i4").tobytes() if self._late else b"",
            similarities=self._late.similarities.astype("<f4").tobytes() if self._late else b"",
        )


def _units(sequences: Sequences, work: Score) -> list[tuple[int, ...]]:
    """Pairs together; of a matrix first the queries, then the documents, each in ascending length."""
    lengths, queries = sequences.lengths.tolist(), work.queries
    if work.layout is Layout.PAIRS:
        pairs = [(index, queries + index) for index in range(queries)]
        return sorted(pairs, key=lambda pair: lengths[pair[0]] + lengths[pair[1]])
    groups = (range(queries), range(queries, len(lengths)))
    return [(index,) for group in groups for index in sorted(group, key=lengths.__getitem__)]

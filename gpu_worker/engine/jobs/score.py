"""Score jobs: scores of queries with documents; sequences 0 to `queries` - 1 of the job are the queries."""

from collections.abc import Callable

import numpy as np

from gpu_worker.engine.jobs.dense_scoring import DenseScoring
from gpu_worker.engine.jobs.late_scoring import LateScoring
from gpu_worker.engine.jobs.scoring import Scoring, comparing_flops
from gpu_worker.engine.jobs.sparse_scoring import SparseScoring
from gpu_worker.engine.jobs.texts import TextJob
from gpu_worker.engine.jobs.units import WHOLE, PieceLimits
from gpu_worker.engine.step.download import StepDownload
from gpu_worker.engine.step.outputs import Outputs
from gpu_worker.engine.step.sequences import PackedSequences, Sequences
from gpu_worker.model.heads.heads import Heads
from gpu_worker.schedule.interface import JobSlice
from shared.jobs import HybridWeights, JobResult, Score
from shared.vectors import Layout, ScoringMethod


class ScoreJob(TextJob):
    """An open Score: its `scorings`, one, or up to three of a hybrid, each with its weight."""

    def __init__(
        self,
        sequences: Sequences,
        work: Score,
        heads: Heads,
        flops_per_token: float,
        sparse_cost: Callable[[int], int] = int,
        limits: PieceLimits = WHOLE,
    ) -> None:
        """`sparse_cost`: cost in tokens of the sparse vector of a sequence of so many tokens, beside the encoder's."""
        super().__init__(sequences, _groups(sequences, work), limits)
        self._work = work
        shape = work.layout.shape(work.queries, len(sequences) - work.queries)
        hybrid, weights = work.method is ScoringMethod.HYBRID, work.weights or HybridWeights()
        self.scorings: list[tuple[float, Scoring]] = []
        self._late: LateScoring | None = None
        if work.method is ScoringMethod.DENSE or (hybrid and weights.dense):
            self.scorings.append((weights.dense, DenseScoring(work, shape)))
        if self.compares_tokens(work):
            assert heads.multi_vector is not None
            self._late = LateScoring(work, shape, sequences, mean=work.mean or hybrid)
            self.scorings.append((weights.multi_vector, self._late))
            self.costs = self._with_comparing(heads.multi_vector.width, flops_per_token)
        if work.method is ScoringMethod.SPARSE or (hybrid and weights.sparse):
            extra = [sparse_cost(tokens) for tokens in self.units.tokens]
            self.costs = [cost + more for cost, more in zip(self.costs, extra, strict=True)]
            self.scorings.append((weights.sparse, SparseScoring(work, shape)))

    @staticmethod
    def compares_tokens(work: Score) -> bool:
        """Whether token vectors are compared."""
        if work.method is ScoringMethod.HYBRID:
            return bool((work.weights or HybridWeights()).multi_vector)
        return work.method is ScoringMethod.LATE_INTERACTION

    def _with_comparing(self, width: int, flops_per_token: float) -> list[int]:
        """Costs of units, including the comparison of a document with all queries; of pairs, as they are."""
        if self._work.layout is Layout.PAIRS:
            return list(self.costs)
        queries = self._work.queries
        rows = int(self.sequences.lengths[:queries].sum())
        extra = rows * comparing_flops(width, self._work.explain) / flops_per_token
        return [
            cost + int(tokens * extra * (numbers[0] >= queries))
            for cost, tokens, numbers in zip(self.costs, self.units.tokens, self.units.numbers, strict=True)
        ]

    def step_slice(self, job_slice: JobSlice, packed: PackedSequences) -> "ScoreSlice":
        """Creates a slice of this job for a step."""
        return ScoreSlice(self, packed)

    def result(self) -> JobResult:
        """Scores, of a hybrid the weighted sum, and explanations. Raises Internal where a number is not finite."""
        scores = self.scorings[0][1].scores
        if self._work.method is ScoringMethod.HYBRID:
            total = sum(weight for weight, _ in self.scorings)
            weighted = (weight / total * scoring.scores for weight, scoring in self.scorings)
            scores = sum(weighted, np.zeros_like(scores))
        self.finite &= bool(np.isfinite(scores).all())
        self.check_finite()
        return JobResult(
            scores=scores.astype("<f4").tobytes(),
            winners=self._late.winners.astype("<i4").tobytes() if self._late else b"",
            similarities=self._late.similarities.astype("<f4").tobytes() if self._late else b"",
        )


class ScoreSlice:
    """A slice of a Score in a step: the phases of all its scorings; see `StepSlice`."""

    def __init__(self, job: ScoreJob, packed: PackedSequences) -> None:
        self._job, self._packed = job, packed
        self._slices = [scoring.step_slice(packed) for _, scoring in job.scorings]

    def request_outputs(self, outputs: Outputs) -> None:
        """Requests what each scoring compares."""
        self._outputs = outputs
        for scoring_slice in self._slices:
            scoring_slice.request_outputs(outputs)

    def on_device(self, download: StepDownload) -> None:
        """Compares by each scoring."""
        for scoring_slice in self._slices:
            scoring_slice.on_device(download)

    def on_host(self) -> None:
        """Puts the scores of each scoring into its table."""
        self._job.note_finite(self._packed, self._outputs)
        for scoring_slice in self._slices:
            scoring_slice.on_host()


def _groups(sequences: Sequences, work: Score) -> list[tuple[int, ...]]:
    """The sequences of each unit, in ascending length, before long ones are cut: a pair is one unit; of a matrix first
    every query, then every document."""
    lengths, queries = sequences.lengths.tolist(), work.queries
    if work.layout is Layout.PAIRS:
        pairs = [(index, queries + index) for index in range(queries)]
        return sorted(pairs, key=lambda pair: lengths[pair[0]] + lengths[pair[1]])
    groups = (range(queries), range(queries, len(lengths)))
    return [(index,) for group in groups for index in sorted(group, key=lengths.__getitem__)]

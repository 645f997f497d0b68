"""Scores of queries with documents; sequences 0 to `queries` - 1 of the job are the queries."""

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker import scoring, sparse
from gpu_worker.models.loading import Model
from gpu_worker.outbox import Array, Outbox
from gpu_worker.progress.text import Delivery, Member, TextProgress
from gpu_worker.ragged_batch import Counts
from gpu_worker.rows import Rows
from shared.jobs import HybridWeights, Job, JobResult, Score
from shared.vectors import Layout, ScoringMethod

Scores = npt.NDArray[np.float32]
Take = Callable[[Rows, Counts, Counts], Tensor]
"""Rows of a step, numbers of sequences in the job, their places in the batch -> their rows, end to end."""


class _RowScores:
    """Scores by vectors on the device; queries' rows stay there until the last document."""

    def __init__(self, work: Score, shape: tuple[int, int], counts: Counts, take: Take, mean: bool) -> None:
        """`counts` [S]: how many rows each sequence is compared by."""
        self._work, self._counts, self._take, self._mean = work, counts, take, mean
        self._known: list[tuple[Counts, Tensor]] = []
        self.scores: Scores = np.empty(shape, dtype=np.float32)

    def compute(self, member: Member, rows: Rows) -> "_Launched":
        queries, documents = _sides(member, self._work.queries)
        found = None if not len(documents[0]) else self._take(rows, *documents)
        known = [(queries[0], self._take(rows, *queries))] if len(queries[0]) else []
        lengths, columns = self._counts[documents[0]], documents[0] - self._work.queries
        if self._work.layout is Layout.PAIRS:
            assert found is not None
            scores = scoring.pairs(known[0][1], self._counts[queries[0]], found, lengths, self._mean)
            return scores, lambda array: self.scores.__setitem__((queries[0], 0), array)
        kept = [*self._known, *known]
        if found is None:
            return None, lambda _: setattr(self, "_known", kept)
        index, joined = np.concatenate([each for each, _ in kept]), torch.cat([each for _, each in kept])

        def put(array: Array) -> None:
            self._known = [(index, joined)]
            self.scores[np.ix_(index, columns)] = array

        return scoring.matrix(joined, self._counts[index], found, lengths, self._mean), put

    def forget(self) -> None:
        """Frees the queries' rows."""
        self._known = []


_Launched = tuple[Tensor | None, Callable[[Array], None]]


class _SparseScores:
    """Scores by sparse vectors, on the host."""

    def __init__(self, work: Score, shape: tuple[int, int]) -> None:
        self._work = work
        self._known: dict[int, sparse.Vector] = {}
        self.scores: Scores = np.empty(shape, dtype=np.float32)

    def put(self, member: Member, reading: sparse.Reading, arrays: list[Array]) -> None:
        vectors = dict(zip(member.sequences.tolist(), reading(arrays), strict=True))
        queries = self._work.queries
        documents = [each for each in vectors if each >= queries]
        self._known |= {each: vector for each, vector in vectors.items() if each < queries}
        if not documents:
            return
        columns = [each - queries for each in documents]
        found = [vectors[each] for each in documents]
        if self._work.layout is Layout.PAIRS:
            self.scores[columns, 0] = sparse.pairs([vectors[each] for each in columns], found)
        else:
            known = sorted(self._known)
            asked = [self._known[each] for each in known]
            self.scores[np.ix_(known, columns)] = sparse.matrix(asked, found)


class ScoreProgress(TextProgress):
    """A Score on its way: one part, or the three of a hybrid with their weights."""

    def __init__(
        self,
        job: Job,
        work: Score,
        model: Model,
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
        self._row_parts: list[tuple[float, _RowScores]] = []
        self._sparse_parts: list[tuple[float, _SparseScores]] = []
        if work.method is ScoringMethod.DENSE or (hybrid and weights.dense):
            ones = np.ones_like(self.lengths)
            dense = _RowScores(work, shape, ones, lambda rows, _, places: rows.pooled(places), mean=False)
            self._row_parts.append((weights.dense, dense))
        if work.method is ScoringMethod.LATE_INTERACTION or (hybrid and weights.multi_vector):
            assert model.heads.multi_vector is not None
            self.kept = model.heads.multi_vector.kept(self.offsets)
            late = _RowScores(work, shape, self.kept_counts(), self._token_rows, mean=work.mean or hybrid)
            self._row_parts.append((weights.multi_vector, late))
            self.costs = self._with_comparing(model.heads.multi_vector.width, model.flops_per_token)
        if work.method is ScoringMethod.SPARSE or (hybrid and weights.sparse):
            self.wants_sparse = True
            extra = [sum(sparse_cost(int(self.lengths[each])) for each in unit) for unit in self.units]
            self.costs = [cost + more for cost, more in zip(self.costs, extra, strict=True)]
            self._sparse_parts.append((weights.sparse, _SparseScores(work, shape)))

    def _token_rows(self, rows: Rows, sequences: Counts, places: Counts) -> Tensor:
        return rows.tokens(rows.kept_rows(self, Member(sequences=sequences, places=places)))

    def _with_comparing(self, width: int, flops_per_token: float) -> list[int]:
        """Costs of units with what it takes to compare a document with all queries."""
        if self.work.layout is Layout.PAIRS:
            return list(self.costs)
        queries = self.work.queries
        extra = int(self.lengths[:queries].sum()) * comparing_flops(width) / flops_per_token
        return [
            cost + int(cost * extra * (unit[0] >= queries)) for cost, unit in zip(self.costs, self.units, strict=True)
        ]

    def compute(self, member: Member, rows: Rows, outbox: Outbox) -> list[Delivery]:
        deliveries: list[Delivery] = []
        for _, part in self._row_parts:
            scores, put = part.compute(member, rows)
            slot = None if scores is None else outbox.add(scores)
            deliveries.append(partial(_deliver, put, slot))
        for _, sparse_part in self._sparse_parts:
            deliveries.append(partial(sparse_part.put, member, rows.sparse(self, member, outbox)))
        return deliveries

    def complete(self) -> None:
        """Frees the queries' rows once all documents are scored."""
        for _, part in self._row_parts:
            part.forget()

    def result(self) -> JobResult:
        parts = [(weight, part.scores) for weight, part in self._row_parts]
        parts += [(weight, part.scores) for weight, part in self._sparse_parts]
        if self.work.method is ScoringMethod.HYBRID:
            total = sum(weight for weight, _ in parts)
            scores = sum((weight / total * each for weight, each in parts), np.zeros_like(parts[0][1]))
        else:
            scores = parts[0][1]
        self.finite &= bool(np.isfinite(scores).all())
        self.check()
        return JobResult(scores=scores.astype("<f4").tobytes())


def _units(job: Job, work: Score) -> list[tuple[int, ...]]:
    """Pairs together; of a matrix first the queries, then the documents, each in ascending length."""
    lengths, queries = job.tokens.lengths, work.queries
    if work.layout is Layout.PAIRS:
        pairs = [(index, queries + index) for index in range(queries)]
        return sorted(pairs, key=lambda pair: lengths[pair[0]] + lengths[pair[1]])
    groups = (range(queries), range(queries, len(lengths)))
    return [(index,) for group in groups for index in sorted(group, key=lengths.__getitem__)]


def _sides(member: Member, queries: int) -> tuple[tuple[Counts, Counts], tuple[Counts, Counts]]:
    """Numbers and places of the queries among a member's sequences, and those of the documents."""
    is_query = member.sequences < queries
    return (
        (member.sequences[is_query], member.places[is_query]),
        (member.sequences[~is_query], member.places[~is_query]),
    )


def _deliver(put: Callable[[Array], None], slot: int | None, arrays: list[Array]) -> None:
    put(arrays[slot] if slot is not None else np.empty(0))


def comparing_flops(width: int) -> int:
    """Of one similarity: the product, and a maximum that takes as long as about a hundred more (measured on a CPU)."""
    return 2 * width + 100

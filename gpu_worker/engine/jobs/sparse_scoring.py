"""Scores by products of sparse vectors, on the host."""

import numpy as np

from gpu_worker.engine.jobs.scoring import Scores
from gpu_worker.engine.step.download import StepDownload
from gpu_worker.engine.step.outputs import Outputs
from gpu_worker.engine.step.sequences import PackedSequences
from gpu_worker.model.heads import sparse_vectors
from gpu_worker.model.heads.sparse_vectors import Vector
from shared.jobs import Score
from shared.vectors import Layout


class SparseScoring:
    """The sparse scores of one job, and the vectors of its queries."""

    def __init__(self, work: Score, shape: tuple[int, int]) -> None:
        self.work, self.finite = work, True
        self.queries: dict[int, Vector] = {}
        self.scores: Scores = np.empty(shape, dtype=np.float32)

    def step_slice(self, packed: PackedSequences) -> "SparseScoringSlice":
        """Creates the phases in which a step scores these sequences."""
        return SparseScoringSlice(self, packed)

    def fill(self, documents: list[int], vectors: dict[int, Vector]) -> None:
        """Scores these documents with all queries so far, or as pairs; `vectors` by the numbers of sequences."""
        columns = [number - self.work.queries for number in documents]
        document_vectors = [vectors[number] for number in documents]
        if self.work.layout is Layout.PAIRS:
            self.scores[columns, 0] = sparse_vectors.pairs(
                [self.queries[number] for number in columns], document_vectors
            )
        else:
            numbers = sorted(self.queries)
            query_vectors = [self.queries[number] for number in numbers]
            self.scores[np.ix_(numbers, columns)] = sparse_vectors.matrix(query_vectors, document_vectors)


class SparseScoringSlice:
    """Queries and documents of one step; see `StepSlice`."""

    def __init__(self, scoring: SparseScoring, packed: PackedSequences) -> None:
        self._scoring, self._packed = scoring, packed

    def request_outputs(self, outputs: Outputs) -> None:
        """Requests sparse vectors of queries and documents."""
        self._sparse = outputs.request_sparse_vectors(self._packed)

    def on_device(self, download: StepDownload) -> None:
        """Computes nothing: sparse vectors are compared on the host."""

    def on_host(self) -> None:
        """Keeps the vectors of new queries, and scores the documents."""
        scoring, queries = self._scoring, self._scoring.work.queries
        vectors_in_order, finite = self._sparse.vectors()
        vectors = dict(zip(self._packed.numbers.tolist(), vectors_in_order, strict=True))
        documents = [number for number in vectors if number >= queries]
        scoring.finite &= finite
        scoring.queries |= {number: vector for number, vector in vectors.items() if number < queries}
        if documents:
            scoring.fill(documents, vectors)
        if not scoring.finite:  # vectors leave out a weight that is not finite, so the scores have to show it
            scoring.scores[:] = np.nan

"""Score jobs: scores of queries with documents; sequences 0 to `queries` - 1 of the job are the queries, unless a table
has their vectors: then all are documents.

By products of dense rows and by late interaction (MaxSim of token vectors) they are computed on the device, by products
of sparse vectors on the host. A hybrid has up to three tables of scores, and adds them.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from gpu_worker.device.transfer import DownloadedArray, StepDownload
from gpu_worker.engine.jobs.job import (
    LOOKED_UP,
    ComparingJob,
    QueryRows,
    Scores,
    TextJob,
    averaged,
    by_length,
    comparing_flops,
)
from gpu_worker.engine.jobs.units import WHOLE, PieceLimits
from gpu_worker.engine.step.outputs import Compared, Outputs, SliceRows, Wanted
from gpu_worker.engine.step.rows import RowFormat
from gpu_worker.engine.step.sequences import PackedSequences, Sequences
from gpu_worker.kernels.maxsim.maxsim_kernels import winners
from gpu_worker.kernels.rows import row_kernels
from gpu_worker.model.heads import sparse_vectors
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.heads.sparse_vectors import Vector
from gpu_worker.ragged.batch import Counts
from shared.jobs import HybridWeights, JobResult, RaggedTokens, Score
from shared.query_table import QueryTable
from shared.vectors import Layout, ScoringMethod


class ScoreJob(TextJob, ComparingJob):
    """An open Score: its `scorings`, one, or up to three of a hybrid, each with its weight."""

    def __init__(
        self,
        sequences: Sequences,
        work: Score,
        heads: Heads,
        flops_per_token: float,
        sparse_cost: Callable[[int], int] = int,
        limits: PieceLimits = WHOLE,
        looked_up: "LookedUp | None" = None,
    ) -> None:
        """`sparse_cost`: cost in tokens of the sparse vector of a sequence of so many tokens, beside the encoder's.
        `looked_up`: the queries where a table has their vectors; then all sequences are documents."""
        super().__init__(sequences, by_length(sequences) if looked_up else groups_of(sequences, work), limits)
        self._work, first_document = work, 0 if looked_up else work.queries
        shape = work.layout.shape(work.queries, len(sequences) - first_document)
        hybrid, weights = work.method is ScoringMethod.HYBRID, work.weights or HybridWeights()
        self.scorings: list[tuple[float, _Scoring]] = []
        self._on_device: list[DenseScoring | LateScoring] = []
        self._late: LateScoring | None = None
        self._sparse: SparseScoring | None = None
        rows, dense_rows, token_rows, top_k = RowFormat(unit=work.unit_rows), None, None, None
        if work.method is ScoringMethod.DENSE or (hybrid and weights.dense):
            dense, dense_rows = DenseScoring(work, shape), rows
            self._on_device.append(dense)
            self.scorings.append((weights.dense, dense))
        if self.compares_tokens(work):
            assert heads.multi_vector is not None
            self._late, token_rows = LateScoring(work, shape, sequences, mean=work.mean or hybrid), rows
            self._on_device.append(self._late)
            self.scorings.append((weights.multi_vector, self._late))
            self.costs = costs_with_comparing(self, work, heads.multi_vector.width, flops_per_token)
        if work.method is ScoringMethod.SPARSE or (hybrid and weights.sparse):
            extra = [sparse_cost(tokens) for tokens in self.units.tokens]
            extra[0] += looked_up.tokens.total // LOOKED_UP if looked_up else 0
            self.costs = [cost + more for cost, more in zip(self.costs, extra, strict=True)]
            self._sparse, top_k = SparseScoring(work, shape, first_document, looked_up), 0
            self.scorings.append((weights.sparse, self._sparse))
        self.wanted = Wanted(dense=dense_rows, tokens=token_rows, in_place_from=work.queries, sparse_top_k=top_k)

    @staticmethod
    def compares_tokens(work: Score) -> bool:
        """Whether token vectors are compared."""
        if work.method is ScoringMethod.HYBRID:
            return bool((work.weights or HybridWeights()).multi_vector)
        return work.method is ScoringMethod.LATE_INTERACTION

    def compare(self, slice_rows: SliceRows, outputs: Outputs, download: StepDownload) -> Sequence[Compared]:
        """Keeps the rows of new queries, and compares the documents with all queries or their own."""
        queries, documents = slice_rows.packed.split(self._work.queries)
        if len(queries):
            for scoring in self._on_device:
                scoring.keep_queries(slice_rows, queries)
        if not len(documents):
            return ()
        return [scoring.compare(slice_rows, documents, outputs, download) for scoring in self._on_device]

    def put(self, slice_rows: SliceRows) -> None:
        """Puts the scores of each scoring into its table."""
        self.finite &= slice_rows.finite
        for scoring, compared in zip(self._on_device, slice_rows.compared, strict=False):  # none where no document was
            scoring.put(compared)
        if self._sparse is not None:
            self._sparse.put(slice_rows)

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


def costs_with_comparing(job: TextJob, work: Score, width: int, flops_per_token: float) -> Sequence[int]:
    """Costs of a job's units, including the comparison of a document with all queries; of pairs, as they are. `width`:
    dimensions of token rows."""
    if work.layout is Layout.PAIRS:
        return job.costs
    rows = int(job.sequences.lengths[: work.queries].sum())
    extra = rows * comparing_flops(width, work.explain) / flops_per_token
    return [
        cost + int(tokens * extra * (numbers[0] >= work.queries))
        for cost, tokens, numbers in zip(job.costs, job.units.tokens, job.units.numbers, strict=True)
    ]


class DenseScoring:
    """The dense scores of one job, and the rows of its queries."""

    def __init__(self, work: Score, shape: tuple[int, int]) -> None:
        self._work, self._query_rows = work, QueryRows()
        self.scores: Scores = np.empty(shape, dtype=np.float32)

    def keep_queries(self, slice_rows: SliceRows, queries: PackedSequences) -> None:
        """Keeps the rows of the queries, the first ones of the slice."""
        # A copy: a view would keep the rows of all documents beside them as well.
        self._query_rows.add_queries(queries.numbers, slice_rows.dense.tensor[: len(queries)].clone().split(1))

    def compare(
        self, slice_rows: SliceRows, documents: PackedSequences, outputs: Outputs, download: StepDownload
    ) -> Compared:
        """Multiplies the documents' rows, the last ones of the slice, with those of all queries or their own."""
        columns, layout = documents.numbers - self._work.queries, self._work.layout
        numbers, rows = self._query_rows.compared_with(columns, layout)
        document_rows = slice_rows.dense.tensor[-len(documents) :]
        if layout is Layout.PAIRS:
            products = (rows * document_rows).sum(dim=1, keepdim=True)
        else:
            products = row_kernels.choose(rows.device).products(rows, document_rows)
        return Compared(queries=numbers, documents=columns, scores=download.add_tensor(products))

    def put(self, compared: Compared) -> None:
        """Puts the scores into the table."""
        self.scores[_places(compared, self._work.layout)] = compared.table


class LateScoring:
    """The late-interaction scores of one job, and the token vectors of its queries.

    With `explain`, `winners` [documents, tokens of the query] are the document tokens that matched best, -1 for none,
    and `similarities` their products.
    """

    def __init__(self, work: Score, shape: tuple[int, int], sequences: Sequences, mean: bool) -> None:
        """`mean`: scores are divided by the rows of their query."""
        self._work, self._sequences, self._mean = work, sequences, mean
        self._query_rows = QueryRows()
        self.scores: Scores = np.empty(shape, dtype=np.float32)
        explained = (shape[1] if work.explain else 0, int(sequences.lengths[0]))
        self.winners = np.full(explained, -1, dtype=np.int32)
        self.similarities: Scores = np.zeros(explained, dtype=np.float32)

    def keep_queries(self, slice_rows: SliceRows, queries: PackedSequences) -> None:
        """Keeps the token vectors of the queries."""
        row_counts = self._sequences.selected_counts[queries.numbers]
        self._query_rows.add_queries(queries.numbers, slice_rows.tokens.tensor.split(row_counts.tolist()))

    def compare(
        self, slice_rows: SliceRows, documents: PackedSequences, outputs: Outputs, download: StepDownload
    ) -> Compared:
        """Compares the documents, where the batch has them, with all queries or their own."""
        columns, layout = documents.numbers - self._work.queries, self._work.layout
        numbers, rows = self._query_rows.compared_with(columns, layout)
        scores = outputs.add_comparison(rows, self._sequences.selected_counts[numbers], documents, layout)
        if not self._work.explain:
            return Compared(queries=numbers, documents=columns, scores=scores)
        similarities, places = _winners(rows, documents, outputs, download)
        return Compared(queries=numbers, documents=columns, scores=scores, winners=places, similarities=similarities)

    def put(self, compared: Compared) -> None:
        """Puts scores and explanations into the tables."""
        work, row_counts = self._work, self._sequences.selected_counts
        scores = compared.table
        if self._mean:
            documents = row_counts[compared.documents + work.queries]
            scores = averaged(scores, row_counts[compared.queries], documents, work.layout)
        self.scores[_places(compared, work.layout)] = scores
        if compared.winners is not None and compared.similarities is not None:
            tokens = np.flatnonzero(self._sequences.selected[: self._sequences.lengths[0]])
            places = np.ix_(compared.documents, tokens)
            self.similarities[places], self.winners[places] = compared.similarities.array, compared.winners.array


class LookedUp(NamedTuple):
    """Queries of inference-free SPLADE: their `tokens`, and the table that has a weight for each."""

    table: QueryTable
    tokens: RaggedTokens


class SparseScoring:
    """The sparse scores of one job, and the vectors of its queries; all of it on the host."""

    def __init__(
        self, work: Score, shape: tuple[int, int], first_document: int, looked_up: LookedUp | None = None
    ) -> None:
        """`first_document`: its number. `looked_up`: the queries where a table has their vectors."""
        self._work, self._first_document, self._finite = work, first_document, True
        self._queries: dict[int, Vector] = {}
        self._looked_up = looked_up
        self.scores: Scores = np.empty(shape, dtype=np.float32)

    def put(self, slice_rows: SliceRows) -> None:
        """Keeps the vectors of new queries, and scores the documents."""
        first = self._first_document
        if self._looked_up is not None and not self._queries:
            vectors_of_queries = self._looked_up.table.look_up(self._looked_up.tokens)
            self._queries = dict(enumerate(sparse_vectors.unpack(vectors_of_queries)))
        vectors_in_order, finite = slice_rows.sparse.vectors()
        vectors = dict(zip(slice_rows.packed.numbers.tolist(), vectors_in_order, strict=True))
        documents = [number for number in vectors if number >= first]
        self._finite &= finite
        self._queries |= {number: vector for number, vector in vectors.items() if number < first}
        if documents:
            self._score(documents, vectors)
        if not self._finite:  # vectors leave out a weight that is not finite, so the scores have to show it
            self.scores[:] = np.nan

    def _score(self, documents: list[int], vectors: dict[int, Vector]) -> None:
        """Scores these documents with all queries so far, or as pairs; `vectors` by the numbers of sequences."""
        columns = [number - self._first_document for number in documents]
        document_vectors = [vectors[number] for number in documents]
        if self._work.layout is Layout.PAIRS:
            query_vectors = [self._queries[number] for number in columns]
            self.scores[columns, 0] = sparse_vectors.pairs(query_vectors, document_vectors)
        else:
            numbers = sorted(self._queries)
            query_vectors = [self._queries[number] for number in numbers]
            self.scores[np.ix_(numbers, columns)] = sparse_vectors.matrix(query_vectors, document_vectors)


_Scoring = DenseScoring | LateScoring | SparseScoring


def _places(compared: Compared, layout: Layout) -> tuple[Counts, ...]:
    """Where scores stand in a table [Q, S], or [P, 1] for pairs."""
    return (compared.documents,) if layout is Layout.PAIRS else np.ix_(compared.queries, compared.documents)


def _winners(
    query: Tensor, documents: PackedSequences, outputs: Outputs, download: StepDownload
) -> tuple[DownloadedArray, DownloadedArray]:
    """Finds the similarity and place of the token of each document that won for each row [q, W] of the only query."""
    tables = winners(query, outputs.rows_in_place, outputs.texts_of(documents), outputs.selected_mask())
    similarities, places = (download.add_tensor(table) for table in tables)
    return similarities, places


def groups_of(sequences: Sequences, work: Score) -> list[tuple[int, ...]]:
    """The sequences of each unit, in ascending length, before long ones are cut: a pair is one unit; of a matrix first
    every query, then every document."""
    lengths, queries = sequences.lengths.tolist(), work.queries
    if work.layout is Layout.PAIRS:
        pairs = [(index, queries + index) for index in range(queries)]
        return sorted(pairs, key=lambda pair: lengths[pair[0]] + lengths[pair[1]])
    groups = (range(queries), range(queries, len(lengths)))
    return [(index,) for group in groups for index in sorted(group, key=lengths.__getitem__)]

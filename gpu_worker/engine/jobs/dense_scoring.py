"""Scores by products of dense rows."""

import numpy as np

from gpu_worker.engine.jobs.scoring import QueryRows, Scores
from gpu_worker.engine.step.download import StepDownload
from gpu_worker.engine.step.outputs import Outputs
from gpu_worker.engine.step.row_outputs import RowFormat
from gpu_worker.engine.step.sequences import PackedSequences
from gpu_worker.kernels.rows import row_kernels
from gpu_worker.ragged.batch import Counts
from shared.jobs import Score
from shared.vectors import Layout


class DenseScoring:
    """The dense scores of one job, and the rows of its queries."""

    def __init__(self, work: Score, shape: tuple[int, int]) -> None:
        self.work, self.query_rows = work, QueryRows()
        self.scores: Scores = np.empty(shape, dtype=np.float32)

    def step_slice(self, packed: PackedSequences) -> "DenseScoringSlice":
        """Creates the phases in which a step scores these sequences."""
        return DenseScoringSlice(self, packed)


class DenseScoringSlice:
    """Queries and documents of one step; see `StepSlice`."""

    def __init__(self, scoring: DenseScoring, packed: PackedSequences) -> None:
        self._scoring = scoring
        self._queries, self._documents = packed.split(scoring.work.queries)
        self._columns = self._documents.numbers - scoring.work.queries

    def request_outputs(self, outputs: Outputs) -> None:
        """Requests dense rows of the queries and of the documents."""
        row_format = RowFormat(unit=self._scoring.work.unit_rows)
        self._query_rows = outputs.request_dense_rows(self._queries, row_format)
        self._document_rows = outputs.request_dense_rows(self._documents, row_format)

    def on_device(self, download: StepDownload) -> None:
        """Keeps the rows of new queries, and multiplies the documents' rows with those of all queries or their own."""
        query_rows = self._scoring.query_rows
        if len(self._queries):
            # A copy: a view would keep the rows of all documents beside them as well.
            query_rows.add_queries(self._queries.numbers, self._query_rows.tensor.clone().split(1))
        if not len(self._documents):
            return
        if self._scoring.work.layout is Layout.PAIRS:
            products = (query_rows.rows_of(self._columns) * self._document_rows.tensor).sum(dim=1, keepdim=True)
            self._places: tuple[Counts, ...] = (self._columns,)
        else:
            numbers, rows = query_rows.joined()
            products = row_kernels.choose(rows.device).products(rows, self._document_rows.tensor)
            self._places = np.ix_(numbers, self._columns)
        self._products = download.add_tensor(products)

    def on_host(self) -> None:
        """Puts the scores into the job's table."""
        if len(self._documents):
            self._scoring.scores[self._places] = self._products.array

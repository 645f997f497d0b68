"""Scores by late interaction: MaxSim of token vectors."""

import numpy as np
from torch import Tensor

from gpu_worker.engine.jobs.scoring import QueryRows, Scores, averaged
from gpu_worker.engine.step.download import StepDownload
from gpu_worker.engine.step.outputs import Outputs
from gpu_worker.engine.step.row_outputs import RowFormat
from gpu_worker.engine.step.sequences import PackedSequences, Sequences
from gpu_worker.kernels.maxsim.maxsim_kernels import winners
from shared.jobs import Score
from shared.vectors import Layout


class LateScoring:
    """The late-interaction scores of one job, and the token vectors of its queries.

    With `explain`, `winners` [documents, tokens of the query] are the document tokens that matched best, -1 for none,
    and `similarities` their products.
    """

    def __init__(self, work: Score, shape: tuple[int, int], sequences: Sequences, mean: bool) -> None:
        """`mean`: scores are divided by the rows of their query."""
        self.work, self.sequences, self.mean = work, sequences, mean
        self.query_rows = QueryRows()
        self.scores: Scores = np.empty(shape, dtype=np.float32)
        explained = (shape[1] if work.explain else 0, int(sequences.lengths[0]))
        self.winners = np.full(explained, -1, dtype=np.int32)
        self.similarities: Scores = np.zeros(explained, dtype=np.float32)

    def step_slice(self, packed: PackedSequences) -> "LateScoringSlice":
        """Creates the phases in which a step scores these sequences."""
        return LateScoringSlice(self, packed)


class LateScoringSlice:
    """Queries and documents of one step; see `StepSlice`."""

    def __init__(self, scoring: LateScoring, packed: PackedSequences) -> None:
        self._scoring = scoring
        self._queries, self._documents = packed.split(scoring.work.queries)
        self._columns = self._documents.numbers - scoring.work.queries

    def request_outputs(self, outputs: Outputs) -> None:
        """Requests token vectors: of the queries to keep them, of the documents to read them in place."""
        self._outputs = outputs
        row_format = RowFormat(unit=self._scoring.work.unit_rows)
        self._query_rows = outputs.request_token_rows(self._queries, row_format)
        if len(self._documents):
            outputs.request_documents(self._documents, row_format)

    def on_device(self, download: StepDownload) -> None:
        """Keeps the rows of new queries, and compares the documents with all queries or their own."""
        work, query_rows = self._scoring.work, self._scoring.query_rows
        row_counts = self._scoring.sequences.selected_counts
        if len(self._queries):
            numbers = self._queries.numbers
            query_rows.add_queries(numbers, self._query_rows.tensor.split(row_counts[numbers].tolist()))
        if not len(self._documents):
            return
        if work.layout is Layout.PAIRS:
            self._compared, rows = self._columns, query_rows.rows_of(self._columns)
        else:
            self._compared, rows = query_rows.joined()
        self._scores = self._outputs.add_comparison(rows, row_counts[self._compared], self._documents, work.layout)
        if work.explain:
            self._explain(rows, download)

    def _explain(self, query: Tensor, download: StepDownload) -> None:
        """Finds which token of each document won for each row [q, W] of the only query."""
        outputs = self._outputs
        similarities, places = winners(
            query, outputs.rows_in_place, outputs.texts_of(self._documents), outputs.selected_mask()
        )
        self._similarities, self._winners = download.add_tensor(similarities), download.add_tensor(places)

    def on_host(self) -> None:
        """Puts scores and explanations into the job's tables."""
        if not len(self._documents):
            return
        scoring, layout = self._scoring, self._scoring.work.layout
        row_counts = scoring.sequences.selected_counts
        scores = self._scores.values.reshape(len(self._compared), -1)
        if scoring.mean:
            scores = averaged(scores, row_counts[self._compared], row_counts[self._documents.numbers], layout)
        places = (self._columns,) if layout is Layout.PAIRS else np.ix_(self._compared, self._columns)
        scoring.scores[places] = scores
        if scoring.work.explain:
            tokens = np.flatnonzero(scoring.sequences.selected[: scoring.sequences.lengths[0]])
            places = np.ix_(self._columns, tokens)
            scoring.similarities[places], scoring.winners[places] = self._similarities.array, self._winners.array

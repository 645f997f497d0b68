"""Vectors of documents that a caller sent, their scores, and explanations: which rows of the documents won."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.engine.jobs.scoring import averaged, comparing_flops
from gpu_worker.engine.jobs.table import byte_view
from gpu_worker.engine.step.comparisons import Comparisons
from gpu_worker.engine.step.download import Array, StepDownload
from gpu_worker.kernels.maxsim.comparison import MaxSimKernel, Texts
from gpu_worker.kernels.maxsim.maxsim_kernels import winners
from gpu_worker.kernels.rows import row_kernels
from gpu_worker.ragged.batch import Counts
from gpu_worker.ragged.upload import to_device
from shared import jobs
from shared.errors import InvalidInput
from shared.jobs import JobResult
from shared.vectors import Layout, MultiVectors

NUMBERS_PER_TOKEN = 32_768
"""Numbers sent by a caller that cost as much as a token: a step of 2,048 tokens holds 256 MiB of them in float32."""


class CallerDocuments:
    """The documents of an open MaxSim, and the tables of their scores; a unit is a document, or a pair."""

    def __init__(
        self,
        work: jobs.MaxSim,
        query_rows: Counts,
        flops_per_token: float,
        columns: Counts | None = None,
        widths: Counts | None = None,
    ) -> None:
        """`query_rows` [Q]: rows of each query. `flops_per_token`: operations of the model for a token; a unit costs as
        many tokens as the model computes with the operations of its comparison. Explanations have `widths` [Q] columns
        for each query, and each query row [sum of query_rows] stands in the column `columns` of its query; by default
        each row has its own. Raises InvalidInput.
        """
        self.work, self.query_rows = work, query_rows
        self.rows: Counts = np.array(work.documents.lengths, dtype=np.int64)
        self.pairs = work.layout is Layout.PAIRS
        if not len(query_rows) or not len(self.rows):
            raise InvalidInput("max_sim needs a query and a document", field="documents")
        if self.pairs and len(query_rows) != len(self.rows):
            raise InvalidInput("pairs need as many queries as documents", field="documents")
        partners = query_rows if self.pairs else np.full_like(self.rows, query_rows.sum())
        flops = (self.rows * partners + self.rows) * comparing_flops(work.documents.dimensions, work.explain)
        numbers = (self.rows + partners) * work.documents.dimensions // NUMBERS_PER_TOKEN
        self.costs: Sequence[int] = (1 + flops // max(1, int(flops_per_token)) + numbers).tolist()
        self.scores = np.empty(work.layout.shape(len(query_rows), len(self.rows)), dtype=np.float32)
        self.winners: list[Array] = []
        self.similarities: list[Array] = []
        if work.explain:  # otherwise a waiting job holds no number for a query row, of which there may be millions
            self._make_explanations(query_rows if widths is None else widths, columns)

    def _make_explanations(self, widths: Counts, columns: Counts | None) -> None:
        """Makes the tables of explanations, and works out in which column each query row stands."""
        rows = self.query_rows
        self._starts = np.cumsum(rows) - rows
        row_columns = np.arange(rows.sum()) - np.repeat(self._starts, rows) if columns is None else columns
        self._widths, self._row_columns = widths, row_columns
        self._matrix_columns = np.repeat(np.cumsum(widths) - widths, rows) + row_columns
        explained = widths if self.pairs else np.full_like(self.rows, widths.sum())
        self.winners = [np.full(width, -1, dtype=np.int32) for width in explained]
        self.similarities = [np.zeros(width, dtype=np.float32) for width in explained]

    def columns_of(self, unit: int) -> Counts:
        """Columns of a unit's explanation in which the query rows stand that it was compared with."""
        if not self.pairs:
            return self._matrix_columns
        first = self._starts[unit]
        return self._row_columns[first : first + self.query_rows[unit]]

    def documents_slice(self, start: int, stop: int) -> "CallerDocumentsSlice":
        """Creates the phases in which a step compares units `start` to `stop`."""
        return CallerDocumentsSlice(self, start, stop)

    def result(self) -> JobResult:
        """Scores and explanations. Raises InvalidInput where products of large numbers left float32."""
        if not np.isfinite(self.scores).all():
            raise InvalidInput("products of the given vectors overflow float32", field="documents.data")
        return JobResult(
            scores=byte_view(self.scores),
            winners=self._by_score(self.winners).astype("<i4").tobytes(),
            similarities=self._by_score(self.similarities).astype("<f4").tobytes(),
        )

    def _by_score(self, by_document: list[Array]) -> Array:
        """Joins explanations in the order of the scores: one pair, or one query of a matrix, after the other."""
        if self.pairs or not by_document:
            return np.concatenate([np.empty(0), *by_document])
        table = np.stack(by_document)
        by_query = np.split(table, np.cumsum(self._widths)[:-1], axis=1)
        return np.concatenate([query_table.ravel() for query_table in by_query])


class CallerDocumentsSlice:
    """Units `start` to `stop` in a step: their two phases. What they are compared with is known on the device only."""

    def __init__(self, documents: CallerDocuments, start: int, stop: int) -> None:
        self._documents, self._units = documents, slice(start, stop)
        self._query_rows = documents.query_rows[start:stop] if documents.pairs else documents.query_rows
        self._texts = Texts.end_to_end(documents.rows[start:stop])

    def on_device(self, queries: Tensor, kernel: MaxSimKernel, download: StepDownload) -> None:
        """Compares the units with query rows, end to end: all rows [sum of query_rows, D], or those of the pairs."""
        work, half = self._documents.work, queries.dtype is not torch.float32
        documents = work.documents.part(self._units.start, self._units.stop)
        vectors = rows_on_device(documents, work.unit_rows, queries.device, half)
        comparisons = Comparisons(kernel)
        self._scores = comparisons.add_comparison(queries, self._query_rows, self._texts, work.layout)
        comparisons.compute(vectors, None, download)
        if work.explain:
            self._explain(queries, vectors, download)

    def _explain(self, queries: Tensor, vectors: Tensor, download: StepDownload) -> None:
        """Finds the winners: pair by pair, or for the rows of all queries at once."""
        if self._documents.pairs:
            pairs = [
                winners(rows, vectors, self._texts.part(place, place + 1))
                for place, rows in enumerate(queries.split(self._query_rows.tolist()))
            ]
            similarities = torch.cat([table.flatten() for table, _ in pairs])
            places = torch.cat([table.flatten() for _, table in pairs])
        else:
            similarities, places = (table.flatten() for table in winners(queries, vectors, self._texts))
        self._similarities, self._winners = download.add_tensor(similarities), download.add_tensor(places)

    def on_host(self) -> None:
        """Puts scores and explanations into the tables."""
        documents, work = self._documents, self._documents.work
        scores = self._scores.values.reshape(len(self._query_rows), -1)
        if work.mean:
            scores = averaged(scores, self._query_rows, self._texts.lengths, work.layout)
        documents.scores[self._units if documents.pairs else (slice(None), self._units)] = scores
        if work.explain:
            self._put_explanations()

    def _put_explanations(self) -> None:
        documents, begin = self._documents, 0
        for unit in range(self._units.start, self._units.stop):
            columns = documents.columns_of(unit)
            end = begin + len(columns)
            documents.similarities[unit][columns] = self._similarities.array[begin:end]
            documents.winners[unit][columns] = self._winners.array[begin:end]
            begin = end


def rows_on_device(vectors: MultiVectors, unit: bool, device: torch.device, half: bool) -> Tensor:
    """Rows [N, D] on the device, of unit length if `unit`; `half` keeps half precision, otherwise they are float32."""
    rows = to_device(row_kernels.unpack(vectors, half), device)
    return F.normalize(rows, dim=1) if unit else rows

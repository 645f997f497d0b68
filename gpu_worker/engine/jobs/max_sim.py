"""MaxSim jobs over a caller's documents. Queries are a caller's too, and no model runs, or texts that are encoded.

A result has scores and, where the caller asks for it, an explanation: which rows of the documents won.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gpu_worker.device.transfer import Array, StepDownload, to_device
from gpu_worker.engine.jobs.job import ComparingJob, QueryRows, TextJob, averaged, comparing_flops
from gpu_worker.engine.jobs.units import WHOLE, PieceLimits
from gpu_worker.engine.step.outputs import Compared, Outputs, SliceRows, Wanted
from gpu_worker.engine.step.rows import RowFormat, byte_view
from gpu_worker.engine.step.sequences import Selection, Sequences
from gpu_worker.kernels.maxsim.maxsim_kernels import Comparison, MaxSimKernel, Texts, winners
from gpu_worker.kernels.rows import row_kernels
from gpu_worker.ragged.batch import Counts
from shared.errors import DimensionMismatch, InvalidInput
from shared.jobs import Job, JobResult, MaxSim
from shared.vectors import DataType, Layout, MultiVectors

HALF = (DataType.FLOAT16, DataType.BFLOAT16)
NUMBERS_PER_TOKEN = 32_768
"""Numbers sent by a caller that cost as much as a token: a step of 2,048 tokens holds 256 MiB of them in float32."""


class MaxSimJob(ComparingJob):
    """An open MaxSim of a caller's queries and documents. It holds only their bytes; each step makes rows of them."""

    wanted = Wanted()

    def __init__(self, job: Job, work: MaxSim, flops_per_token: float, half_width: int = 0) -> None:
        """`half_width`: dimensions for which the device compares half precision as it is. Raises InvalidInput and
        DimensionMismatch.
        """
        assert work.queries is not None
        self.queries, self.unit_rows = work.queries, work.unit_rows
        if work.queries.dimensions != work.documents.dimensions:
            raise DimensionMismatch("queries and documents have different dimensions", field="documents")
        self.half = (
            work.queries.data_type in HALF
            and work.queries.data_type is work.documents.data_type
            and work.documents.dimensions == half_width
            and not work.unit_rows
        )
        self.documents = CallerDocuments(work, np.array(work.queries.lengths, dtype=np.int64), flops_per_token)
        self.costs: Sequence[int] = self.documents.costs
        self.room: Sequence[int] = ()
        self.spared: Sequence[int] = ()
        self.sequences = Sequences(job)

    def selection(self, start: int, stop: int) -> Selection:
        """No sequence belongs to a unit."""
        return Selection.of_whole(self.sequences, np.empty(0, dtype=np.int64))

    def drop_caches(self, selection: Selection) -> None:
        """Nothing is kept."""

    def compare(self, slice_rows: SliceRows, outputs: Outputs, download: StepDownload) -> Sequence[Compared]:
        """Compares the documents with all queries, or with their own."""
        start, stop = slice_rows.start, slice_rows.stop
        queries = self.queries.part(start, stop) if self.documents.pairs else self.queries
        rows = _rows_on_device(queries, self.unit_rows, outputs.device, self.half)
        return [self.documents.compare(start, stop, rows, outputs.maxsim, download)]

    def put(self, slice_rows: SliceRows) -> None:
        """Puts the scores into the documents' tables."""
        (compared,) = slice_rows.compared
        self.documents.put(slice_rows.start, slice_rows.stop, compared)

    def result(self) -> JobResult:
        """Scores and explanations. Raises InvalidInput where a score is not finite."""
        return self.documents.result()


class TextMaxSimJob(TextJob, ComparingJob):
    """An open MaxSim of texts: first its queries are encoded, then documents are units without a sequence."""

    def __init__(
        self,
        sequences: Sequences,
        work: MaxSim,
        width: int,
        flops_per_token: float,
        limits: PieceLimits = WHOLE,
    ) -> None:
        """`width`: dimensions of the model's token rows. Raises InvalidInput and DimensionMismatch."""
        dimensions = work.documents.dimensions
        if dimensions > width:
            raise DimensionMismatch(
                f"documents have {dimensions} dimensions, the model's token rows {width}", field="documents.dimensions"
            )
        queries = [(number,) for number in range(len(sequences))]
        super().__init__(sequences, [*queries, *(() for _ in work.documents.lengths)], limits)
        self.first_document = len(self.units.numbers) - len(work.documents.lengths)
        self.wanted = Wanted(tokens=RowFormat(dimensions=dimensions, unit=work.unit_queries))
        counts = sequences.selected_counts
        columns = np.flatnonzero(sequences.selected) - np.repeat(sequences.offsets[:-1], counts)
        self.documents = CallerDocuments(work, counts, flops_per_token, columns, sequences.lengths)
        self.costs = [*self.costs[: self.first_document], *self.documents.costs]
        self.query_rows = QueryRows()

    def compare(self, slice_rows: SliceRows, outputs: Outputs, download: StepDownload) -> Sequence[Compared]:
        """Keeps the rows of new queries, and compares the documents with all queries, or with their own."""
        numbers = slice_rows.packed.numbers
        if len(numbers):
            counts = self.sequences.selected_counts[numbers].tolist()
            self.query_rows.add_queries(numbers, slice_rows.tokens.tensor.split(counts))
        start, stop = self._documents_of(slice_rows)
        if stop <= 0:
            return ()
        compared = np.arange(start, stop) if self.documents.pairs else np.arange(len(self.sequences))
        queries = self.query_rows.rows_of(compared)
        return [self.documents.compare(start, stop, queries, outputs.maxsim, download)]

    def put(self, slice_rows: SliceRows) -> None:
        """Puts the scores into the documents' tables."""
        self.finite &= slice_rows.finite
        for compared in slice_rows.compared:
            self.documents.put(*self._documents_of(slice_rows), compared)

    def _documents_of(self, slice_rows: SliceRows) -> tuple[int, int]:
        """Finds the first document of the units of a job slice, and the one behind the last: 0 or less where it has
        none."""
        return max(0, slice_rows.start - self.first_document), slice_rows.stop - self.first_document

    def result(self) -> JobResult:
        """Scores and explanations. Raises Internal where the model gave a number that is not finite, and InvalidInput
        where a score is not.
        """
        self.check_finite()
        return self.documents.result()


class CallerDocuments:
    """The documents of an open MaxSim, and the tables of their scores; a unit is a document, or a pair. What they are
    compared with is known on the device only."""

    def __init__(
        self,
        work: MaxSim,
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

    def compare(self, start: int, stop: int, queries: Tensor, kernel: MaxSimKernel, download: StepDownload) -> Compared:
        """Compares units `start` to `stop` - 1 with query rows, end to end: all rows [sum of query_rows, D], or those
        of the pairs."""
        work, half = self.work, queries.dtype is not torch.float32
        numbers, lengths = np.arange(len(self.query_rows)), self.query_rows
        if self.pairs:
            numbers, lengths = numbers[start:stop], lengths[start:stop]
        vectors = _rows_on_device(work.documents.part(start, stop), work.unit_rows, queries.device, half)
        texts = Texts.end_to_end(self.rows[start:stop])
        comparison = Comparison(queries=Texts.end_to_end(lengths), documents=texts, layout=work.layout)
        scores = download.add_tensor(kernel(queries, vectors, [comparison], None))
        documents = np.arange(start, stop)
        if not work.explain:
            return Compared(queries=numbers, documents=documents, scores=scores)
        by_query = queries.split(lengths.tolist()) if self.pairs else [queries]
        # Pair by pair, or for the rows of all queries at once.
        explanations = [
            winners(rows, vectors, texts.part(place, place + 1) if self.pairs else texts)
            for place, rows in enumerate(by_query)
        ]
        similarities, places = (
            download.add_tensor(torch.cat([table.flatten() for table in tables]))
            for tables in zip(*explanations, strict=True)
        )
        return Compared(queries=numbers, documents=documents, scores=scores, winners=places, similarities=similarities)

    def put(self, start: int, stop: int, compared: Compared) -> None:
        """Puts scores and explanations of units `start` to `stop` - 1 into the tables."""
        work, units = self.work, slice(start, stop)
        scores = compared.table
        if work.mean:
            scores = averaged(scores, self.query_rows[compared.queries], self.rows[units], work.layout)
        self.scores[units if self.pairs else (slice(None), units)] = scores
        if compared.winners is not None and compared.similarities is not None:
            self._put_explanations(units, compared.winners.array, compared.similarities.array)

    def _put_explanations(self, units: slice, won: Array, similarities: Array) -> None:
        begin = 0
        for unit in range(units.start, units.stop):
            columns = self._columns_of(unit)
            end = begin + len(columns)
            self.similarities[unit][columns] = similarities[begin:end]
            self.winners[unit][columns] = won[begin:end]
            begin = end

    def _columns_of(self, unit: int) -> Counts:
        """Columns of a unit's explanation in which the query rows stand that it was compared with."""
        if not self.pairs:
            return self._matrix_columns
        first = self._starts[unit]
        return self._row_columns[first : first + self.query_rows[unit]]

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


def _rows_on_device(vectors: MultiVectors, unit: bool, device: torch.device, half: bool) -> Tensor:
    """Makes rows [N, D] on the device, of unit length if `unit`; `half` keeps half precision, otherwise they are
    float32."""
    rows = to_device(row_kernels.unpack(vectors, half), device)
    return row_kernels.choose(device).finished(rows, None, 0, True) if unit else rows

"""MaxSim jobs over a caller's documents. Queries are a caller's too, and no model runs, or texts that are encoded."""

from collections.abc import Sequence

import numpy as np

from gpu_worker.engine.jobs.caller_documents import CallerDocuments, rows_on_device
from gpu_worker.engine.jobs.scoring import QueryRows
from gpu_worker.engine.jobs.texts import TextJob
from gpu_worker.engine.jobs.units import WHOLE, PieceLimits
from gpu_worker.engine.step.download import StepDownload
from gpu_worker.engine.step.outputs import Outputs
from gpu_worker.engine.step.row_outputs import RowFormat
from gpu_worker.engine.step.sequences import PackedSequences, Selection, Sequences
from gpu_worker.schedule.interface import JobSlice
from shared.errors import DimensionMismatch
from shared.jobs import Job, JobResult, MaxSim
from shared.vectors import DataType

HALF = (DataType.FLOAT16, DataType.BFLOAT16)


class MaxSimJob:
    """An open MaxSim of a caller's queries and documents. It holds only their bytes; each step makes rows of them."""

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

    def step_slice(self, job_slice: JobSlice, packed: PackedSequences) -> "MaxSimSlice":
        """Creates a slice of this job for a step."""
        return MaxSimSlice(self, job_slice)

    def result(self) -> JobResult:
        """Scores and explanations. Raises InvalidInput where a score is not finite."""
        return self.documents.result()


class MaxSimSlice:
    """A slice of a MaxSim of a caller's queries in a step; see `StepSlice`."""

    def __init__(self, job: MaxSimJob, job_slice: JobSlice) -> None:
        self._job = job
        pairs = job.documents.pairs
        self._queries = job.queries.part(job_slice.start, job_slice.stop) if pairs else job.queries
        self._documents = job.documents.documents_slice(job_slice.start, job_slice.stop)

    def request_outputs(self, outputs: Outputs) -> None:
        """Requests nothing: no model runs."""
        self._outputs = outputs

    def on_device(self, download: StepDownload) -> None:
        """Compares the documents with all queries, or with their own."""
        queries = rows_on_device(self._queries, self._job.unit_rows, self._outputs.device, self._job.half)
        self._documents.on_device(queries, self._outputs.maxsim, download)

    def on_host(self) -> None:
        """Puts the scores into the documents' tables."""
        self._documents.on_host()


class TextMaxSimJob(TextJob):
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
        self.row_format = RowFormat(dimensions=dimensions, unit=work.unit_queries)
        counts = sequences.selected_counts
        columns = np.flatnonzero(sequences.selected) - np.repeat(sequences.offsets[:-1], counts)
        self.documents = CallerDocuments(work, counts, flops_per_token, columns, sequences.lengths)
        self.costs = [*self.costs[: self.first_document], *self.documents.costs]
        self.query_rows = QueryRows()

    def step_slice(self, job_slice: JobSlice, packed: PackedSequences) -> "TextMaxSimSlice":
        """Creates a slice of this job for a step."""
        return TextMaxSimSlice(self, job_slice, packed)

    def result(self) -> JobResult:
        """Scores and explanations. Raises Internal where the model gave a number that is not finite, and InvalidInput
        where a score is not.
        """
        self.check_finite()
        return self.documents.result()


class TextMaxSimSlice:
    """A slice of a MaxSim of texts in a step: some of its queries, some of the documents, or both; see `StepSlice`."""

    def __init__(self, job: TextMaxSimJob, job_slice: JobSlice, packed: PackedSequences) -> None:
        self._job, self._packed = job, packed
        start, stop = max(0, job_slice.start - job.first_document), job_slice.stop - job.first_document
        self._documents = job.documents.documents_slice(start, stop) if stop > 0 else None
        self._compared = np.arange(start, stop) if job.documents.pairs else np.arange(len(job.sequences))

    def request_outputs(self, outputs: Outputs) -> None:
        """Requests token vectors of the queries."""
        self._outputs = outputs
        self._query_rows = outputs.request_token_rows(self._packed, self._job.row_format) if len(self._packed) else None

    def on_device(self, download: StepDownload) -> None:
        """Keeps the rows of new queries, and compares the documents with all queries, or with their own."""
        job, numbers = self._job, self._packed.numbers
        if self._query_rows is not None:
            counts = job.sequences.selected_counts[numbers].tolist()
            job.query_rows.add_queries(numbers, self._query_rows.tensor.split(counts))
        if self._documents is not None:
            queries = job.query_rows.rows_of(self._compared)
            self._documents.on_device(queries, self._outputs.maxsim, download)

    def on_host(self) -> None:
        """Puts the scores into the documents' tables."""
        self._job.note_finite(self._packed, self._outputs)
        if self._documents is not None:
            self._documents.on_host()

"""MaxSim of given documents: with given queries no model runs; with texts only their rows are computed."""

import numpy as np
import torch
from torch import Tensor

from gpu_worker.engine.jobs.caller_documents import GivenDocuments, given_rows
from gpu_worker.engine.jobs.texts import Deliver, Launch, TextJob
from gpu_worker.engine.step.download import StepDownload
from gpu_worker.engine.step.outputs import Outputs
from gpu_worker.engine.step.row_outputs import RowForm
from gpu_worker.engine.step.sequences import Member, Sequences
from gpu_worker.ragged.batch import Counts
from shared.errors import DimensionMismatch
from shared.jobs import Job, JobResult, MaxSim
from shared.vectors import DataType, Layout

HALF = (DataType.FLOAT16, DataType.BFLOAT16)


class MaxSimJob:
    """A MaxSim of given queries on its way. Nothing is held but the given bytes: rows are made of them in each step."""

    def __init__(self, job: Job, work: MaxSim, flops_per_token: float, half_width: int = 0) -> None:
        """`half_width`: dimensions for which the device compares half precision as it is. Raises InvalidInput and
        DimensionMismatch.
        """
        assert work.queries is not None
        self._queries, self._unit_rows = work.queries, work.unit_rows
        if work.queries.dimensions != work.documents.dimensions:
            raise DimensionMismatch("queries and documents have different dimensions", field="documents")
        self._half = (
            work.queries.data_type in HALF
            and work.queries.data_type is work.documents.data_type
            and work.documents.dimensions == half_width
            and not work.unit_rows
        )
        self._given = GivenDocuments(work, np.array(work.queries.lengths, dtype=np.int64), flops_per_token)
        self.costs = self._given.costs
        self.sequences = Sequences(job)
        self._pairs = work.layout is Layout.PAIRS

    def chosen(self, start: int, stop: int) -> Counts:
        return np.empty(0, dtype=np.int64)

    def ask(self, start: int, stop: int, member: Member, outputs: Outputs) -> Launch:
        def launch(shipment: StepDownload) -> Deliver:
            asked = self._queries.part(start, stop) if self._pairs else self._queries
            queries = given_rows(asked, self._unit_rows, outputs.device, self._half)
            return self._given.compare(queries, start, stop, outputs.maxsim, shipment)

        return launch

    def result(self) -> JobResult:
        """Raises InvalidInput."""
        return self._given.result()


class TextMaxSimJob(TextJob):
    """A MaxSim of texts as queries: first they are encoded, then the given documents are units without a sequence."""

    def __init__(self, sequences: Sequences, work: MaxSim, width: int, flops_per_token: float) -> None:
        """`width`: dimensions of the model's token rows. Raises InvalidInput and DimensionMismatch."""
        dimensions = work.documents.dimensions
        if dimensions > width:
            raise DimensionMismatch(
                f"documents have {dimensions} dimensions, the model's token rows {width}", field="documents.dimensions"
            )
        queries = [(number,) for number in range(len(sequences))]
        super().__init__(sequences, [*queries, *(() for _ in work.documents.lengths)])
        self._form = RowForm(dimensions=dimensions, unit=work.unit_queries)
        self._counts = sequences.kept_counts
        tokens = np.flatnonzero(sequences.kept) - np.repeat(sequences.offsets[:-1], self._counts)
        self._given = GivenDocuments(work, self._counts, flops_per_token, tokens, sequences.lengths)
        self.costs = [*sequences.lengths.tolist(), *self._given.costs]
        self._known: dict[int, Tensor] = {}
        self._pairs = work.layout is Layout.PAIRS

    def ask(self, start: int, stop: int, member: Member, outputs: Outputs) -> Launch:
        asked = outputs.tokens(member, self._form) if len(member) else None

        def launch(shipment: StepDownload) -> Deliver:
            if asked is not None:
                rows = asked.tensor.split(self._counts[member.chosen].tolist())
                self._known |= dict(zip(member.chosen.tolist(), rows, strict=True))
            compared = self._compare(start, stop, outputs, shipment)

            def deliver() -> None:
                self.heed(member, outputs)
                if compared is not None:
                    compared()

            return deliver

        return launch

    def _compare(self, start: int, stop: int, outputs: Outputs, shipment: StepDownload) -> Deliver | None:
        """Of the documents among units `start` to `stop`, once the queries' rows are there."""
        queries = len(self.sequences)
        if stop <= queries:
            return None
        first, last = max(start, queries) - queries, stop - queries
        asked = range(first, last) if self._pairs else range(queries)
        vectors = torch.cat([self._known[each] for each in asked])
        return self._given.compare(vectors, first, last, outputs.maxsim, shipment)

    def result(self) -> JobResult:
        """Raises Internal and InvalidInput."""
        self.check()
        return self._given.result()

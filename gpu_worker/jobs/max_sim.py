"""MaxSim of given documents: with given queries no model runs; with texts only their rows are computed."""

import numpy as np
import torch
from torch import Tensor

from gpu_worker.heads.skiplist import Keeping
from gpu_worker.jobs.given import GivenDocuments, given_rows
from gpu_worker.jobs.texts import Delivery, Member, TextProgress
from gpu_worker.maxsim.comparison import MaxSim
from gpu_worker.step.outputs import Rows
from gpu_worker.step.shipment import Outbox
from shared import jobs
from shared.errors import DimensionMismatch
from shared.jobs import Job, JobResult
from shared.vectors import DataType, InputType, Layout

HALF = (DataType.FLOAT16, DataType.BFLOAT16)


class MaxSimProgress:
    """A MaxSim of given queries on its way."""

    def __init__(self, work: jobs.MaxSim, flops_per_token: float, half_width: int = 0) -> None:
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
        self.served = 0
        self._pairs = work.layout is Layout.PAIRS

    def compare(self, start: int, stop: int, device: torch.device, maxsim: MaxSim, outbox: Outbox) -> list[Delivery]:
        """Launches the scores of units `start` to `stop`."""
        asked = self._queries.part(start, stop) if self._pairs else self._queries
        queries = given_rows(asked, self._unit_rows, device, self._half)
        return self._given.compare(queries, start, stop, maxsim, outbox)

    def complete(self) -> None:
        """Nothing is held: rows are made of the given bytes in each step, so that waiting jobs hold bytes alone."""

    def result(self) -> JobResult:
        """Raises InvalidInput."""
        return self._given.result()


class MixedProgress(TextProgress):
    """A MaxSim of texts as queries: first they are encoded, then the given documents are units without a sequence."""

    def __init__(self, job: Job, work: jobs.MaxSim, width: int, flops_per_token: float, keeping: Keeping) -> None:
        """`width`: dimensions of the model's token rows. Raises InvalidInput and DimensionMismatch."""
        dimensions = work.documents.dimensions
        if dimensions > width:
            raise DimensionMismatch(
                f"documents have {dimensions} dimensions, the model's token rows {width}", field="documents.dimensions"
            )
        queries = [(index,) for index in range(len(job.tokens))]
        super().__init__(job, [*queries, *(() for _ in work.documents.lengths)])
        self.dimensions, self.unit_tokens = dimensions, work.unit_queries
        self.kept = keeping(self.ids, self.offsets, InputType.QUERY)
        self._counts = self.kept_counts()
        tokens = np.flatnonzero(self.kept) - np.repeat(self.offsets[:-1], self._counts)
        self._given = GivenDocuments(work, self._counts, flops_per_token, tokens, self.lengths)
        self.costs = [*job.tokens.lengths, *self._given.costs]
        self._known: dict[int, Tensor] = {}
        self._pairs = work.layout is Layout.PAIRS

    def compute(self, member: Member, rows: Rows, outbox: Outbox) -> list[Delivery]:
        own = rows.tokens(rows.kept_rows(self, member))[:, : self.dimensions]
        self._known |= dict(
            zip(member.sequences.tolist(), own.split(self._counts[member.sequences].tolist()), strict=True)
        )
        return []

    def compare(self, start: int, stop: int, device: torch.device, maxsim: MaxSim, outbox: Outbox) -> list[Delivery]:
        """Launches the scores of the documents among units `start` to `stop`, after `compute` for the queries."""
        queries = len(self.lengths)
        if stop <= queries:
            return []
        first, last = max(start, queries) - queries, stop - queries
        asked = range(first, last) if self._pairs else range(queries)
        vectors = torch.cat([self._known[each] for each in asked])
        return self._given.compare(vectors, first, last, maxsim, outbox)

    def complete(self) -> None:
        """Frees the queries' rows."""
        self._known = {}

    def result(self) -> JobResult:
        """Raises Internal and InvalidInput."""
        self.check()
        return self._given.result()

"""Scores of given documents: with given queries, no model runs; with texts, only their rows are computed."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker import packing
from gpu_worker.comparisons import Comparisons
from gpu_worker.keeping import Keeping
from gpu_worker.maxsim.comparison import MaxSim, Texts
from gpu_worker.maxsim.winners import winners
from gpu_worker.outbox import Array, Outbox
from gpu_worker.progress.comparing import averaged, comparing_flops
from gpu_worker.progress.text import Delivery, Member, TextProgress
from gpu_worker.ragged_batch import Counts, to_device
from gpu_worker.rows import Rows
from shared import jobs
from shared.errors import DimensionMismatch, InvalidInput
from shared.jobs import Job, JobResult
from shared.vectors import DataType, InputType, Layout, MultiVectors

HALF = (DataType.FLOAT16, DataType.BFLOAT16)


class GivenDocuments:
    """The documents of a MaxSim, and the scores and winners that come of them; a unit is a document, or a pair."""

    def __init__(self, work: jobs.MaxSim, query_rows: Counts, flops_per_token: float) -> None:
        """`query_rows` [Q]; `flops_per_token`: what a token costs the model, so that given vectors count as much as
        they take. Raises InvalidInput.
        """
        self._work, self.query_rows = work, query_rows
        self.rows: Counts = np.array(work.documents.lengths, dtype=np.int64)
        self._pairs = work.layout is Layout.PAIRS
        if not len(self.query_rows) or not len(self.rows):
            raise InvalidInput("max_sim needs a query and a document", field="documents")
        if self._pairs and len(self.query_rows) != len(self.rows):
            raise InvalidInput("pairs need as many queries as documents", field="documents")
        partners = query_rows if self._pairs else np.full_like(self.rows, query_rows.sum())
        flops = (self.rows * partners + self.rows) * comparing_flops(work.documents.dimensions)
        self.costs: Sequence[int] = (1 + flops // max(1, int(flops_per_token))).tolist()
        self._scores = np.empty(work.layout.shape(len(query_rows), len(self.rows)), dtype=np.float32)
        self._texts = Texts.end_to_end(self.rows)
        self._vectors: Tensor | None = None
        compared = (partners * (self.rows >= 0)).tolist() if work.explain else []
        self._winners = [np.full(count, -1, dtype=np.int32) for count in compared]
        self._similarities = [np.zeros(count, dtype=np.float32) for count in compared]

    def compare(self, queries: Tensor, start: int, stop: int, maxsim: MaxSim, outbox: Outbox) -> list[Delivery]:
        """Launches the scores of units `start` to `stop`; queries [sum of query_rows, D] float32 lie end to end."""
        vectors = self._on(queries)
        chosen = np.arange(start, stop)
        documents = Texts(starts=self._texts.starts[chosen], lengths=self.rows[chosen])
        first, last = 0, len(self.query_rows)
        if self._pairs:
            first, last = start, stop
        ends = np.concatenate([[0], np.cumsum(self.query_rows)])
        lengths, asked = self.query_rows[first:last], queries[ends[first] : ends[last]]
        comparisons = Comparisons(maxsim)
        found = comparisons.add(asked, lengths, documents, self._work.layout)
        comparisons.launch(vectors, None, outbox)

        def deliver(arrays: list[Array]) -> None:
            scores = found(arrays).reshape(len(lengths), -1)
            scores = averaged(scores, lengths, self.rows[chosen], self._work.layout) if self._work.mean else scores
            self._scores[(chosen,) if self._pairs else (slice(None), chosen)] = scores

        return [deliver, *(self._explain(asked, lengths, documents, chosen, outbox) if self._work.explain else [])]

    def _explain(
        self, queries: Tensor, lengths: Counts, documents: Texts, chosen: Counts, outbox: Outbox
    ) -> list[Delivery]:
        """Winners by document: of a pair those of its query's rows, else those of all queries' rows."""
        assert self._vectors is not None
        groups = [(queries, documents, chosen)]
        if self._pairs:
            ends = np.concatenate([[0], np.cumsum(lengths)]).tolist()
            groups = [
                (
                    queries[begin:end],
                    Texts(starts=documents.starts[place : place + 1], lengths=documents.lengths[place : place + 1]),
                    chosen[place : place + 1],
                )
                for place, (begin, end) in enumerate(pairwise(ends))
            ]
        deliveries: list[Delivery] = []
        for asked, found, numbers in groups:
            slots = [outbox.add(each) for each in winners(asked, self._vectors, found)]

            def deliver(arrays: list[Array], slots: list[int] = slots, numbers: Counts = numbers) -> None:
                for row, number in enumerate(numbers.tolist()):
                    self._similarities[number][:] = arrays[slots[0]][row]
                    self._winners[number][:] = arrays[slots[1]][row]

            deliveries.append(deliver)
        return deliveries

    def _on(self, queries: Tensor) -> Tensor:
        """Document rows in the queries' number format on their device; made once, in its thread."""
        if self._vectors is None:
            half = queries.dtype is not torch.float32
            self._vectors = given_rows(self._work.documents, self._work.unit_rows, queries.device, half)
        return self._vectors

    def forget(self) -> None:
        """Frees the rows."""
        self._vectors = None

    def result(self) -> JobResult:
        """Raises InvalidInput where products of large numbers left float32."""
        if not np.isfinite(self._scores).all():
            raise InvalidInput("products of the given vectors overflow float32", field="documents.data")
        return JobResult(
            scores=self._scores.astype("<f4").tobytes(),
            winners=self._by_score(self._winners).astype("<i4").tobytes(),
            similarities=self._by_score(self._similarities).astype("<f4").tobytes(),
        )

    def _by_score(self, by_document: list[Array]) -> Array:
        """In the order of the scores: pairs as they are, of a matrix one query after the other."""
        if self._pairs or not by_document:
            return np.concatenate([np.empty(0), *by_document])
        table = np.stack(by_document)
        return np.concatenate([part.ravel() for part in np.split(table, np.cumsum(self.query_rows)[:-1], axis=1)])


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
        self._vectors: Tensor | None = None

    def compare(self, start: int, stop: int, device: torch.device, maxsim: MaxSim, outbox: Outbox) -> list[Delivery]:
        """Launches the scores of units `start` to `stop`."""
        if self._vectors is None:
            self._vectors = given_rows(self._queries, self._unit_rows, device, self._half)
        return self._given.compare(self._vectors, start, stop, maxsim, outbox)

    def complete(self) -> None:
        """Frees the rows."""
        self._vectors = None
        self._given.forget()

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
        self._given = GivenDocuments(work, self._counts, flops_per_token)
        self.costs = [*job.tokens.lengths, *self._given.costs]
        self._known: dict[int, Tensor] = {}
        self._explains = work.explain
        self._layout = work.layout

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
        vectors = torch.cat([self._known[each] for each in range(queries)])
        return self._given.compare(vectors, max(start, queries) - queries, stop - queries, maxsim, outbox)

    def complete(self) -> None:
        """Frees the rows."""
        self._known = {}
        self._given.forget()

    def result(self) -> JobResult:
        """Raises Internal and InvalidInput."""
        self.check()
        return self._given.result()


def given_rows(vectors: MultiVectors, unit: bool, device: torch.device, half: bool) -> Tensor:
    """Rows [N, D] on the device, of unit length if wanted; float32 unless `half` keeps them as they are."""
    rows = to_device(packing.unpack(vectors, half), device)
    return F.normalize(rows, dim=1) if unit else rows

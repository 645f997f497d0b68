"""Documents that a caller brought, and what comes of comparing them: scores, and winners where they are explained."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.engine.jobs.scoring import averaged, comparing_flops
from gpu_worker.engine.jobs.texts import Deliver
from gpu_worker.engine.step.comparisons import Comparisons
from gpu_worker.engine.step.download import Array, StepDownload
from gpu_worker.kernels.maxsim.comparison import MaxSimKernel, Texts
from gpu_worker.kernels.maxsim.winners import winners
from gpu_worker.kernels.rows import packing
from gpu_worker.ragged.batch import Counts
from gpu_worker.ragged.upload import to_device
from shared import jobs
from shared.errors import InvalidInput
from shared.jobs import JobResult
from shared.vectors import Layout, MultiVectors

NUMBERS_PER_TOKEN = 32_768
"""Given numbers that cost as much as a token: a step of 2,048 tokens holds 256 MiB of them in float32."""


class GivenDocuments:
    """The documents of a MaxSim on its way; a unit is a document, or a pair."""

    def __init__(
        self,
        work: jobs.MaxSim,
        query_rows: Counts,
        flops_per_token: float,
        places: Counts | None = None,
        widths: Counts | None = None,
    ) -> None:
        """`query_rows` [Q]; `flops_per_token`: what a token costs the model, so that given vectors count as much as
        they take. Explanations have `widths` [Q] columns a query, and each query row [sum of query_rows] stands in
        the column `places` of its query; by default each row has its own. Raises InvalidInput.
        """
        self._work, self._query_rows = work, query_rows
        self._rows: Counts = np.array(work.documents.lengths, dtype=np.int64)
        self._pairs = work.layout is Layout.PAIRS
        if not len(query_rows) or not len(self._rows):
            raise InvalidInput("max_sim needs a query and a document", field="documents")
        if self._pairs and len(query_rows) != len(self._rows):
            raise InvalidInput("pairs need as many queries as documents", field="documents")
        partners = query_rows if self._pairs else np.full_like(self._rows, query_rows.sum())
        flops = (self._rows * partners + self._rows) * comparing_flops(work.documents.dimensions, work.explain)
        numbers = (self._rows + partners) * work.documents.dimensions // NUMBERS_PER_TOKEN
        self.costs: Sequence[int] = (1 + flops // max(1, int(flops_per_token)) + numbers).tolist()
        self._scores = np.empty(work.layout.shape(len(query_rows), len(self._rows)), dtype=np.float32)
        self._queries = Texts.end_to_end(query_rows)
        self._winners: list[Array] = []
        self._similarities: list[Array] = []
        if work.explain:  # else a waiting job holds no number a query row, of which there may be millions
            self._lay_out(query_rows if widths is None else widths, places)

    def _lay_out(self, widths: Counts, places: Counts | None) -> None:
        """Room for explanations, and where in it each query row stands."""
        rows = self._query_rows
        own = np.arange(rows.sum()) - np.repeat(self._queries.starts, rows) if places is None else places
        self._widths, self._places = widths, own
        self._matrix_columns = np.repeat(np.cumsum(widths) - widths, rows) + own
        explained = widths if self._pairs else np.full_like(self._rows, widths.sum())
        self._winners = [np.full(width, -1, dtype=np.int32) for width in explained]
        self._similarities = [np.zeros(width, dtype=np.float32) for width in explained]

    def compare(self, queries: Tensor, start: int, stop: int, kernel: MaxSimKernel, shipment: StepDownload) -> Deliver:
        """Launches the scores of units `start` to `stop`.

        queries lie end to end: of a matrix all of them [sum of query_rows, D], of pairs those of these units.
        """
        half = queries.dtype is not torch.float32
        vectors = given_rows(self._work.documents.part(start, stop), self._work.unit_rows, queries.device, half)
        asked = self._query_rows[start:stop] if self._pairs else self._query_rows
        found = Texts.end_to_end(self._rows[start:stop])
        comparisons = Comparisons(kernel)
        compared = comparisons.add(queries, asked, found, self._work.layout)
        comparisons.launch(vectors, None, shipment)
        explain = self._explain(queries, vectors, found, start, shipment) if self._work.explain else None

        def deliver() -> None:
            scores = compared().reshape(len(asked), -1)
            if self._work.mean:
                scores = averaged(scores, asked, found.lengths, self._work.layout)
            self._scores[slice(start, stop) if self._pairs else (slice(None), slice(start, stop))] = scores
            if explain is not None:
                explain()

        return deliver

    def _explain(self, queries: Tensor, vectors: Tensor, found: Texts, start: int, shipment: StepDownload) -> Deliver:
        """Of pairs one by one; of a matrix for all queries' rows at once."""
        units = range(start, start + len(found))
        if self._pairs:
            own = queries.split(self._query_rows[start : units.stop].tolist())
            pairs = [winners(rows, vectors, found.part(place, place + 1)) for place, rows in enumerate(own)]
            made = [torch.cat([each[side].flatten() for each in pairs]) for side in (0, 1)]
        else:
            made = [each.flatten() for each in winners(queries, vectors, found)]
        slots = [shipment.add(each) for each in made]

        def deliver() -> None:
            arrays, begin = shipment.arrays, 0
            for unit in units:
                columns = self._columns(unit)
                end = begin + len(columns)
                self._similarities[unit][columns] = arrays[slots[0]][begin:end]
                self._winners[unit][columns] = arrays[slots[1]][begin:end]
                begin = end

        return deliver

    def _columns(self, unit: int) -> Counts:
        """In which columns of a unit's explanation the query rows stand that it was compared with."""
        if not self._pairs:
            return self._matrix_columns
        first = self._queries.starts[unit]
        return self._places[first : first + self._query_rows[unit]]

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
        return np.concatenate([part.ravel() for part in np.split(table, np.cumsum(self._widths)[:-1], axis=1)])


def given_rows(vectors: MultiVectors, unit: bool, device: torch.device, half: bool) -> Tensor:
    """Rows [N, D] on the device, of unit length if wanted; float32 unless `half` keeps them as they are."""
    rows = to_device(packing.unpack(vectors, half), device)
    return F.normalize(rows, dim=1) if unit else rows

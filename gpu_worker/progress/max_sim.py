"""Scores of given vectors; no model runs."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker import packing, scoring
from gpu_worker.outbox import Array, Outbox
from gpu_worker.progress.score import comparing_flops
from gpu_worker.progress.text import Delivery
from gpu_worker.ragged_batch import Counts, to_device
from shared.errors import DimensionMismatch, InvalidInput
from shared.jobs import JobResult, MaxSim
from shared.vectors import Layout, MultiVectors


class MaxSimProgress:
    """A MaxSim on its way; a unit is a document, or a pair."""

    def __init__(self, work: MaxSim, flops_per_token: float) -> None:
        """`flops_per_token`: what a token costs the model, so that given vectors count as much as they take.

        Raises InvalidInput and DimensionMismatch.
        """
        asked = _check(work)
        self.work = work
        self.documents: Counts = np.array(work.documents.lengths, dtype=np.int64)
        self.queries: Counts = np.array(asked.lengths, dtype=np.int64)
        self._given = (asked, work.documents)
        pairs = work.layout is Layout.PAIRS
        partners = self.queries if pairs else np.full_like(self.documents, self.queries.sum())
        flops = (self.documents * partners + self.documents) * comparing_flops(work.documents.dimensions)
        self.costs: Sequence[int] = (1 + flops // max(1, int(flops_per_token))).tolist()
        self.served = 0
        shape = work.layout.shape(len(self.queries), len(self.documents))
        self.scores = np.empty(shape, dtype=np.float32)
        self._vectors: tuple[Tensor, Tensor] | None = None

    def compute(self, start: int, stop: int, device: torch.device, outbox: Outbox) -> Delivery:
        """Launches the scores of units `start` to `stop`."""
        queries, documents = self._on(device)
        chosen = np.arange(start, stop)
        ends = np.concatenate([[0], np.cumsum(self.documents)])
        rows, lengths = documents[ends[start] : ends[stop]], self.documents[chosen]
        where: tuple[object, object] = (slice(None), chosen)
        if self.work.layout is Layout.PAIRS:
            where = (chosen, 0)
            starts = np.concatenate([[0], np.cumsum(self.queries)])
            partners = queries[starts[start] : starts[stop]]
            scores = scoring.pairs(partners, self.queries[chosen], rows, lengths, self.work.mean)
        else:
            scores = scoring.matrix(queries, self.queries, rows, lengths, self.work.mean)
        slot = outbox.add(scores)

        def deliver(arrays: list[Array]) -> None:
            self.scores[where] = arrays[slot]  # type: ignore[index]

        return deliver

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Query and document rows in float32 on the device, of unit length if wanted; made once, in its thread."""
        if self._vectors is None:
            sides = (to_device(packing.unpack(each), device) for each in self._given)
            queries, documents = (F.normalize(each, dim=1) if self.work.unit_rows else each for each in sides)
            self._vectors = (queries, documents)
        return self._vectors

    def complete(self) -> None:
        """Frees the rows."""
        self._vectors = None

    def result(self) -> JobResult:
        """Raises InvalidInput where products of large numbers left float32."""
        if not np.isfinite(self.scores).all():
            raise InvalidInput("products of the given vectors overflow float32", field="documents.data")
        return JobResult(scores=self.scores.astype("<f4").tobytes())


def _check(work: MaxSim) -> MultiVectors:
    """The queries."""
    queries, documents = work.queries, work.documents
    if queries is None or not queries.lengths or not documents.lengths:
        raise InvalidInput("max_sim needs a query and a document", field="documents")
    if queries.dimensions != documents.dimensions:
        raise DimensionMismatch("queries and documents have different dimensions", field="documents")
    if work.layout is Layout.PAIRS and len(queries.lengths) != len(documents.lengths):
        raise InvalidInput("pairs need as many queries as documents", field="documents")
    return queries

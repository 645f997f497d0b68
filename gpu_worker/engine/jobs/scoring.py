"""How queries are compared with documents, one way a method.

Queries' rows stay until the last document; documents' rows stay nowhere.
"""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.engine.jobs.texts import Deliver, Launch
from gpu_worker.engine.step.download import StepDownload
from gpu_worker.engine.step.outputs import Outputs
from gpu_worker.engine.step.row_outputs import RowForm
from gpu_worker.engine.step.sequences import Member, Sequences
from gpu_worker.engine.step.sparse_outputs import SparseShare
from gpu_worker.kernels.maxsim.winners import winners
from gpu_worker.model.heads import sparse_vectors
from gpu_worker.model.heads.sparse_vectors import Vector
from gpu_worker.ragged.batch import Counts
from shared.jobs import Score
from shared.vectors import Layout

Scores = npt.NDArray[np.float32]


class Scoring(Protocol):
    """One way to compare; `scores` [Q, S], or [P, 1] for pairs, fill up step by step."""

    scores: Scores

    def ask(self, member: Member, outputs: Outputs) -> Launch:
        """Asks for what this step's sequences of the job can be compared by."""


class _Known:
    """Rows of the queries that were encoded so far, on the device. Adding a query twice does no harm."""

    def __init__(self) -> None:
        self._rows: dict[int, Tensor] = {}
        self._all: tuple[Counts, Tensor] = (np.empty(0, dtype=np.int64), torch.empty(0))

    def add(self, queries: Counts, rows: Sequence[Tensor]) -> None:
        """Takes rows [q, W] of each query."""
        self._rows |= dict(zip(queries.tolist(), rows, strict=True))

    def all(self) -> tuple[Counts, Tensor]:
        """Numbers of the queries, ascending, and their rows end to end; joined again only after new ones came."""
        if len(self._all[0]) != len(self._rows):
            order = np.array(sorted(self._rows))
            self._all = (order, self.of(order))
        return self._all

    def of(self, queries: Counts) -> Tensor:
        """Rows of these queries end to end."""
        return torch.cat([self._rows[each] for each in queries.tolist()])


class DenseScoring:
    """Products of dense rows."""

    def __init__(self, work: Score, shape: tuple[int, int]) -> None:
        self._work, self._known = work, _Known()
        self.scores: Scores = np.empty(shape, dtype=np.float32)

    def ask(self, member: Member, outputs: Outputs) -> Launch:
        queries, documents = member.split(self._work.queries)
        form = RowForm(unit=self._work.unit_rows)
        asked, found = outputs.dense(queries, form), outputs.dense(documents, form)
        columns = documents.chosen - self._work.queries

        def launch(shipment: StepDownload) -> Deliver:
            if len(queries):
                # A copy: a view would keep the rows of all documents beside them as well.
                self._known.add(queries.chosen, asked.tensor.clone().split(1))
            if not len(documents):
                return _nothing
            if self._work.layout is Layout.PAIRS:
                products = (self._known.of(columns) * found.tensor).sum(dim=1, keepdim=True)
                return partial(_put, self.scores, (columns,), shipment, shipment.add(products))
            order, known = self._known.all()
            slot = shipment.add(known @ found.tensor.T)
            return partial(_put, self.scores, np.ix_(order, columns), shipment, slot)

        return launch


class LateScoring:
    """MaxSim of token vectors; with `explain` also which tokens of the document won."""

    def __init__(self, work: Score, shape: tuple[int, int], sequences: Sequences, mean: bool) -> None:
        """`mean`: a score is divided by its query's rows. `winners` and `similarities` are [S, tokens of the query]."""
        self._work, self._sequences, self._mean = work, sequences, mean
        self._known = _Known()
        self._counts = sequences.kept_counts
        self.scores: Scores = np.empty(shape, dtype=np.float32)
        explained = (shape[1] if work.explain else 0, int(sequences.lengths[0]))
        self.winners = np.full(explained, -1, dtype=np.int32)
        self.similarities: Scores = np.zeros(explained, dtype=np.float32)

    def ask(self, member: Member, outputs: Outputs) -> Launch:
        queries, documents = member.split(self._work.queries)
        form = RowForm(unit=self._work.unit_rows)
        asked = outputs.tokens(queries, form)
        if len(documents):
            outputs.documents(documents, form)

        def launch(shipment: StepDownload) -> Deliver:
            if len(queries):
                rows = self._counts[queries.chosen].tolist()
                self._known.add(queries.chosen, asked.tensor.split(rows))
            return self._compare(documents, outputs, shipment) if len(documents) else _nothing

        return launch

    def _compare(self, documents: Member, outputs: Outputs, shipment: StepDownload) -> Deliver:
        columns = documents.chosen - self._work.queries
        pairs = self._work.layout is Layout.PAIRS
        order, known = (columns, self._known.of(columns)) if pairs else self._known.all()
        asked, there = self._counts[order], self._counts[documents.chosen]
        into = (columns,) if pairs else np.ix_(order, columns)
        found = outputs.compare(known, asked, documents, self._work.layout)
        explain = self._explain(known, documents, outputs, shipment) if self._work.explain else _nothing

        def deliver() -> None:
            scores = found().reshape(len(order), -1)
            self.scores[into] = averaged(scores, asked, there, self._work.layout) if self._mean else scores
            explain()

        return deliver

    def _explain(self, query: Tensor, documents: Member, outputs: Outputs, shipment: StepDownload) -> Deliver:
        """Winners are tokens of the document, similarities stand at the query's tokens that have a vector."""
        similarities, places = winners(query, outputs.placed, outputs.texts_of(documents), outputs.kept_mask())
        slots = shipment.add(similarities), shipment.add(places)
        tokens = np.flatnonzero(self._sequences.kept[: self._sequences.lengths[0]])
        into = np.ix_(documents.chosen - self._work.queries, tokens)

        def deliver() -> None:
            self.similarities[into], self.winners[into] = (shipment.arrays[slot] for slot in slots)

        return deliver


class SparseScoring:
    """Products of sparse vectors, on the host."""

    def __init__(self, work: Score, shape: tuple[int, int]) -> None:
        self._work, self._sound = work, True
        self._known: dict[int, Vector] = {}
        self.scores: Scores = np.empty(shape, dtype=np.float32)

    def ask(self, member: Member, outputs: Outputs) -> Launch:
        share = outputs.sparse(member)
        return lambda _: partial(self._deliver, member, share)

    def _deliver(self, member: Member, share: SparseShare) -> None:
        made, sound = share.vectors()
        self._sound &= sound
        vectors = dict(zip(member.chosen.tolist(), made, strict=True))
        queries = self._work.queries
        documents = [each for each in vectors if each >= queries]
        self._known |= {each: vector for each, vector in vectors.items() if each < queries}
        if documents:
            self._fill(documents, vectors)
        if not self._sound:  # a weight that is no number is lost where vectors are made, so it is told here
            self.scores[:] = np.nan

    def _fill(self, documents: list[int], vectors: dict[int, Vector]) -> None:
        columns = [each - self._work.queries for each in documents]
        found = [vectors[each] for each in documents]
        if self._work.layout is Layout.PAIRS:
            self.scores[columns, 0] = sparse_vectors.pairs([vectors[each] for each in columns], found)
        else:
            known = sorted(self._known)
            asked = [self._known[each] for each in known]
            self.scores[np.ix_(known, columns)] = sparse_vectors.matrix(asked, found)


def averaged(scores: Scores, query_rows: Counts, document_rows: Counts, layout: Layout) -> Scores:
    """scores [Q, S], or [P, 1] for pairs, divided by their query's rows, but for documents without rows."""
    empty = document_rows[:, None] == 0 if layout is Layout.PAIRS else document_rows == 0
    divisors = np.where(empty, 1, np.maximum(query_rows[:, None], 1)).astype(np.float32)
    means: Scores = np.divide(scores, divisors, dtype=np.float32)
    return means


def _put(scores: Scores, into: tuple[Counts, ...], shipment: StepDownload, slot: int) -> None:
    scores[into] = shipment.arrays[slot]


def _nothing() -> None:
    """Queries alone give no score."""


def comparing_flops(width: int, explain: bool = False) -> int:
    """Of one similarity: the product, and a maximum that takes as long as about a hundred more, or with its place five
    hundred (seen by hand on two processors, no result file holds it)."""
    return 2 * width + (600 if explain else 100)

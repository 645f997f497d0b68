"""How queries are compared with documents: the parts that a score is made of, one a method.

Queries' rows stay with a part until the last document; documents' rows stay nowhere.
"""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.heads import sparse_vectors as sparse
from gpu_worker.jobs.texts import Delivery, Member, TextProgress
from gpu_worker.maxsim.winners import winners
from gpu_worker.ragged.batch import Counts
from gpu_worker.step.outputs import Rows
from gpu_worker.step.shipment import Array, Outbox
from shared.jobs import Score
from shared.vectors import Layout

Scores = npt.NDArray[np.float32]


class ScorePart(Protocol):
    """One way to compare; `scores` [Q, S], or [P, 1] for pairs, fill up step by step."""

    scores: Scores

    def compute(self, member: Member, rows: Rows, outbox: Outbox) -> list[Delivery]:
        """Launches what this step's sequences of the job can be compared by."""

    def forget(self) -> None:
        """Frees what is kept of the queries."""


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


class DensePart:
    """Products of dense rows."""

    def __init__(self, work: Score, shape: tuple[int, int]) -> None:
        self._work, self._known = work, _Known()
        self.scores: Scores = np.empty(shape, dtype=np.float32)

    def compute(self, member: Member, rows: Rows, outbox: Outbox) -> list[Delivery]:
        queries, documents = sides(member, self._work.queries)
        if len(queries.sequences):
            self._known.add(queries.sequences, rows.pooled(queries.places).split(1))
        if not len(documents.sequences):
            return []
        columns = documents.sequences - self._work.queries
        found = rows.pooled(documents.places)
        if self._work.layout is Layout.PAIRS:
            slot = outbox.add((self._known.of(columns) * found).sum(dim=1, keepdim=True))
            return [partial(_put, self.scores, (columns,), slot)]
        order, asked = self._known.all()
        return [partial(_put, self.scores, np.ix_(order, columns), outbox.add(asked @ found.T))]

    def forget(self) -> None:
        self._known = _Known()


class LatePart:
    """MaxSim of token vectors; with `explain` also which tokens of the document won."""

    def __init__(self, work: Score, shape: tuple[int, int], progress: TextProgress, mean: bool) -> None:
        """`mean`: a score is divided by its query's rows. `winners` and `similarities` are [S, tokens of the query]."""
        self._work, self._progress, self._mean = work, progress, mean
        self._known = _Known()
        self._counts = progress.kept_counts()
        self.scores: Scores = np.empty(shape, dtype=np.float32)
        explained = (shape[1] if work.explain else 0, int(progress.lengths[0]))
        self.winners = np.full(explained, -1, dtype=np.int32)
        self.similarities: Scores = np.zeros(explained, dtype=np.float32)

    def compute(self, member: Member, rows: Rows, outbox: Outbox) -> list[Delivery]:
        queries, documents = sides(member, self._work.queries)
        if len(queries.sequences):
            own = rows.tokens(rows.kept_rows(self._progress, queries))
            self._known.add(queries.sequences, own.split(self._counts[queries.sequences].tolist()))
        if not len(documents.sequences):
            return []
        columns = documents.sequences - self._work.queries
        pairs = self._work.layout is Layout.PAIRS
        order, known = (columns, self._known.of(columns)) if pairs else self._known.all()
        asked, there = self._counts[order], self._counts[documents.sequences]
        into = (columns,) if pairs else np.ix_(order, columns)
        found = rows.compare(known, asked, documents.places, self._work.layout)

        def deliver(arrays: list[Array]) -> None:
            scores = found(arrays).reshape(len(order), -1)
            self.scores[into] = averaged(scores, asked, there, self._work.layout) if self._mean else scores

        return [deliver, self._explain(known, documents, rows, outbox)] if self._work.explain else [deliver]

    def _explain(self, query: Tensor, documents: Member, rows: Rows, outbox: Outbox) -> Delivery:
        """Winners are tokens of the document, similarities stand at the query's tokens that have a vector."""
        vectors, mask = rows.every_token(), rows.kept_mask()
        similarities, places = winners(query, vectors, rows.texts_at(documents.places), mask)
        slots = outbox.add(similarities), outbox.add(places)
        tokens = np.flatnonzero(self._progress.kept[: self._progress.lengths[0]])
        into = np.ix_(documents.sequences - self._work.queries, tokens)

        def deliver(arrays: list[Array]) -> None:
            self.similarities[into], self.winners[into] = (arrays[slot] for slot in slots)

        return deliver

    def forget(self) -> None:
        self._known = _Known()


class SparsePart:
    """Products of sparse vectors, on the host."""

    def __init__(self, work: Score, shape: tuple[int, int], progress: TextProgress) -> None:
        self._work, self._progress = work, progress
        self._known: dict[int, sparse.Vector] = {}
        self.scores: Scores = np.empty(shape, dtype=np.float32)

    def compute(self, member: Member, rows: Rows, outbox: Outbox) -> list[Delivery]:
        return [partial(self._deliver, member, rows.sparse(self._progress, member, outbox))]

    def _deliver(self, member: Member, reading: sparse.Reading, arrays: list[Array]) -> None:
        vectors = dict(zip(member.sequences.tolist(), reading(arrays), strict=True))
        queries = self._work.queries
        documents = [each for each in vectors if each >= queries]
        self._known |= {each: vector for each, vector in vectors.items() if each < queries}
        if not documents:
            return
        columns = [each - queries for each in documents]
        found = [vectors[each] for each in documents]
        if self._work.layout is Layout.PAIRS:
            self.scores[columns, 0] = sparse.pairs([vectors[each] for each in columns], found)
        else:
            known = sorted(self._known)
            asked = [self._known[each] for each in known]
            self.scores[np.ix_(known, columns)] = sparse.matrix(asked, found)

    def forget(self) -> None:
        self._known = {}


def averaged(scores: Scores, query_rows: Counts, document_rows: Counts, layout: Layout) -> Scores:
    """scores [Q, S], or [P, 1] for pairs, divided by their query's rows, but for documents without rows."""
    empty = document_rows[:, None] == 0 if layout is Layout.PAIRS else document_rows == 0
    divisors = np.where(empty, 1, np.maximum(query_rows[:, None], 1)).astype(np.float32)
    means: Scores = np.divide(scores, divisors, dtype=np.float32)
    return means


def sides(member: Member, queries: int) -> tuple[Member, Member]:
    """The queries among a member's sequences, and the documents."""
    asked = member.sequences < queries
    return (
        Member(sequences=member.sequences[asked], places=member.places[asked]),
        Member(sequences=member.sequences[~asked], places=member.places[~asked]),
    )


def _put(scores: Scores, into: tuple[Counts, ...], slot: int, arrays: list[Array]) -> None:
    scores[into] = arrays[slot]


def comparing_flops(width: int, explain: bool = False) -> int:
    """Of one similarity: the product, and a maximum that takes as long as about a hundred more, or with its place five
    hundred (seen by hand on two processors, no result file holds it)."""
    return 2 * width + (600 if explain else 100)

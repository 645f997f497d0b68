"""Open jobs: the protocol that the engine uses, the bases of jobs over token ids and of jobs that compare rows, and the
jobs whose results are rows of their sequences: vectors or logits.

A step asks a job for its selection, makes the rows that the job wants, and puts them into it. Jobs that pool token rows
are in `pooled.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.device.transfer import StepDownload
from gpu_worker.engine.jobs.units import WHOLE, PieceLimits, Units
from gpu_worker.engine.step.outputs import Compared, Outputs, SliceRows, Wanted
from gpu_worker.engine.step.rows import RowFormat, Table, byte_view
from gpu_worker.engine.step.sequences import Selection, Sequences
from gpu_worker.model.heads import sparse_vectors
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.heads.sparse_vectors import Vector
from gpu_worker.ragged.batch import Counts
from gpu_worker.ragged.pieces import SequenceCache
from gpu_worker.schedule.interface import OpenJob
from shared.errors import Internal
from shared.jobs import Classify, Encode, Job, JobResult, RaggedTokens
from shared.query_table import QueryTable
from shared.vectors import Layout, OutputKind

NO_TOKENS = RaggedTokens(ids=b"", lengths=())
LOOKED_UP = 4
"""Tokens whose look-up in a table costs as much as a computed token: no step is brief that looks up many."""
Scores = npt.NDArray[np.float32]


class StepJob(OpenJob, Protocol):
    """An open job of any kind. One that compares rows on the device is a `ComparingJob` as well, one that pools token
    rows on the host a `PoolingJob`."""

    sequences: Sequences
    wanted: Wanted

    def selection(self, start: int, stop: int) -> Selection:
        """What units `start` to `stop` have of the job's sequences; there may be none."""

    def drop_caches(self, selection: Selection) -> None:
        """Gives back what was kept for the selection, which was collected, and for no later piece."""

    def put(self, slice_rows: SliceRows) -> None:
        """Puts a job slice's rows into the result. Twice is harmless."""


class TextJob:
    """Sequences in units; the sequences of a unit are computed in the same step, or a long one in pieces.

    `wanted`: the rows that the kind of job makes its result of. `caches`: by number, those of the sequences whose
    pieces are being computed.
    """

    wanted = Wanted()

    def __init__(self, sequences: Sequences, groups: Sequence[tuple[int, ...]], limits: PieceLimits = WHOLE) -> None:
        """`groups`: the numbers of the sequences of each unit, in the order in which units are served, before long ones
        are cut; texts that share tokens are brought together. Raises InputTooLong for a sequence whose keys and values
        do not fit."""
        limits.check(sequences)
        self.sequences = sequences
        alike = limits.alike(sequences, groups)
        self.units = Units.of(sequences, alike, limits.longest, limits.token_bytes, limits.state_bytes)
        self._shared, self._joins = alike.shared, alike.sharing
        self.costs: Sequence[int] = self.units.costs(alike)
        self.spared: Sequence[int] = ()
        if self.costs != self.units.tokens:
            texts = zip(self.units.texts_tokens(), self.costs, strict=True)
            self.spared = [tokens - cost for tokens, cost in texts]
        self.room: Sequence[int] = self.units.room
        self.caches: dict[int, SequenceCache] = {}
        self.finite = True

    def selection(self, start: int, stop: int) -> Selection:
        """What units `start` to `stop` have of the sequences. Makes caches for those that are cut."""
        numbers, starts, stops = self.units.ranges(start, stop)
        joined = self._joins and bool(self._shared[numbers].any())
        if not self.units.room:
            return Selection(self.sequences, numbers, starts, stops, joined=joined, uncut=True)
        leaders = self.units.leaders.intersection(numbers.tolist())
        for number in (*leaders, *numbers[stops - starts < self.sequences.lengths[numbers]].tolist()):
            if number not in self.caches:
                self._add_caches(number)
        return Selection(self.sequences, numbers, starts, stops, caches=self.caches, leaders=leaders, joined=joined)

    def _add_caches(self, number: int) -> None:
        """Makes the cache of a sequence, and those of all that take tokens from it or from one of these: it may be
        given back before they begin."""
        for member in self.units.run_of(number):
            fork = self.units.forks.get(member)
            beginning = () if fork is None else self.caches[fork.leader].slots(fork.shared)
            self.caches[member] = SequenceCache(int(self.sequences.lengths[member]), beginning)

    def drop_caches(self, selection: Selection) -> None:
        """Gives back what was kept for the selection, which was collected, and for no later piece."""
        if self.caches:
            for number in selection.numbers[selection.ended].tolist():
                self.caches.pop(number, None)

    def check_finite(self) -> None:
        """Raises Internal where the model gave the sequences numbers that are not finite."""
        if not self.finite:
            raise Internal("the model gave numbers that are not finite")


class ComparingJob:
    """A job that compares rows on the device."""

    def compare(self, slice_rows: SliceRows, outputs: Outputs, download: StepDownload) -> Sequence[Compared]:
        """On the device's thread, once the rows of a step are made: compares what they are for, and downloads it.

        Nothing may wait for the device here. Slices of a job come in the order of their steps. Comparisons that are
        added to `outputs` are computed after those of all jobs were, at once: their scores are read on the host.
        """
        raise NotImplementedError


class PoolingJob:
    """A job that pools token rows of documents on the host."""

    def pool(self, slice_rows: SliceRows) -> None:
        """In a thread for that, once the download of a step arrived: computes what `put` will put into the result.

        Slices of a job come in the order of their steps. Rows that are not finite are left as they are.
        """
        raise NotImplementedError


class QueryRows:
    """Rows of the queries that were encoded so far, on the device."""

    def __init__(self) -> None:
        self._rows: dict[int, Tensor] = {}
        self._joined: tuple[Counts, Tensor] | None = None

    def add_queries(self, numbers: Counts, rows: Sequence[Tensor]) -> None:
        """Keeps the rows [q, W] of each query. Those of a query that came before are replaced: a step that went on with
        a text whose earlier piece failed made them of nothing, and is run again."""
        self._rows |= dict(zip(numbers.tolist(), rows, strict=True))
        self._joined = None

    def joined(self) -> tuple[Counts, Tensor]:
        """Numbers of the queries, ascending, and their rows end to end; joined again only after queries came."""
        if self._joined is None:
            numbers = np.array(sorted(self._rows))
            self._joined = (numbers, self.rows_of(numbers))
        return self._joined

    def compared_with(self, documents: Counts, layout: Layout) -> tuple[Counts, Tensor]:
        """Numbers and rows, end to end, of the queries that documents are compared with: all so far, or the own query
        of each."""
        return (documents, self.rows_of(documents)) if layout is Layout.PAIRS else self.joined()

    def rows_of(self, numbers: Counts) -> Tensor:
        """Rows of these queries end to end."""
        return torch.cat([self._rows[number] for number in numbers.tolist()])


def averaged(scores: Scores, query_rows: Counts, document_rows: Counts, layout: Layout) -> Scores:
    """Divides scores [Q, S], or [P, 1] for pairs, by the rows of their query; documents without rows keep theirs."""
    empty = document_rows[:, None] == 0 if layout is Layout.PAIRS else document_rows == 0
    divisors = np.where(empty, 1, np.maximum(query_rows[:, None], 1)).astype(np.float32)
    means: Scores = np.divide(scores, divisors, dtype=np.float32)
    return means


def comparing_flops(width: int, explain: bool = False) -> int:
    """Operations of one similarity, as an estimate.

    They are the product and a maximum. The maximum takes as long as about a hundred operations, with the place of the
    winner five hundred more: seen by hand on two processors, no result file has it.
    """
    return 2 * width + (600 if explain else 100)


def by_length(sequences: Sequences) -> list[tuple[int, ...]]:
    """Makes units of one sequence each, the shortest first."""
    if len(sequences) == 1:
        return [(0,)]
    return [(number,) for number in np.argsort(sequences.lengths, kind="stable").tolist()]


class EncodeJob(TextJob):
    """An open Encode: a table for each kind of vector that was asked for, None for the others."""

    def __init__(
        self,
        sequences: Sequences,
        work: Encode,
        heads: Heads,
        sparse_cost: Callable[[int], int] = int,
        limits: PieceLimits = WHOLE,
    ) -> None:
        """`sparse_cost`: cost in tokens of the sparse vector of a sequence of so many tokens, beside the encoder's."""
        super().__init__(sequences, by_length(sequences), limits)
        self.work = work
        self.dense: Table | None = None
        self.tokens: Table | None = None
        self.sparse: list[Vector] | None = None
        dense_rows: RowFormat | None = None
        token_rows: RowFormat | None = None
        if OutputKind.DENSE in work.outputs:
            assert heads.dense is not None
            dense_rows = RowFormat(dimensions=work.dimensions, unit=work.normalize, data_type=work.data_type)
            self.dense = Table(len(sequences.pooled), work.dimensions or heads.dense.width, work.data_type)
            if len(sequences.pooled) > len(sequences):
                self.costs = self.units.costs_with_rows(self.costs, sequences.pooled.counts)
        if OutputKind.MULTI_VECTOR in work.outputs:
            assert heads.multi_vector is not None
            token_rows = RowFormat(dimensions=work.dimensions, unit=work.normalize_tokens, data_type=work.data_type)
            width = work.dimensions or heads.multi_vector.width
            self.tokens = Table(int(sequences.selected.sum()), width, work.data_type)
        if OutputKind.SPARSE in work.outputs:
            self.sparse = [sparse_vectors.NOTHING] * len(sequences)
            extra = [sparse_cost(tokens) for tokens in self.units.tokens]
            self.costs = [cost + more for cost, more in zip(self.costs, extra, strict=True)]
        top_k = None if self.sparse is None else work.sparse_top_k
        self.wanted = Wanted(dense=dense_rows, tokens=token_rows, sparse_top_k=top_k)

    def put(self, slice_rows: SliceRows) -> None:
        """Puts the vectors into the tables."""
        sequences, numbers = self.sequences, slice_rows.packed.numbers
        self.finite &= slice_rows.finite
        if self.dense is not None:
            self.dense.put_rows(sequences.pooled.rows_of(numbers), slice_rows.dense)
        if self.tokens is not None:
            self.tokens.put_rows(sequences.selected_places(numbers), slice_rows.tokens)
        if self.sparse is not None:
            vectors, finite = slice_rows.sparse.vectors()
            self.finite &= finite
            for number, vector in zip(numbers.tolist(), vectors, strict=True):
                self.sparse[number] = vector

    def result(self) -> JobResult:
        """Vectors of all sequences. Raises Internal where a number is not finite."""
        tables = [table for table in (self.dense, self.tokens) if table is not None]
        self.finite &= all(table.finite for table in tables)
        self.check_finite()
        sequences, work = self.sequences, self.work
        token_ids = sequences.ids[sequences.selected] if self.tokens is not None and work.token_ids else None
        return JobResult(
            dense=None if self.dense is None else self.dense.all_rows(),
            sparse=None if self.sparse is None else sparse_vectors.pack(self.sparse),
            tokens=None if self.tokens is None else self.tokens.all_rows(),
            row_lengths=() if self.tokens is None else tuple(sequences.selected_counts.tolist()),
            token_ids=b"" if token_ids is None else token_ids.astype("<i4").tobytes(),
        )


class LookUpJob(TextJob):
    """An open Encode of queries of inference-free SPLADE: one unit without a sequence, since a table has their weights.

    The table is too large for frontends, which look queries up by themselves otherwise.
    """

    def __init__(self, job: Job, work: Encode, table: QueryTable) -> None:
        nothing = replace(job, tokens=NO_TOKENS, prompt_lengths=(), second_segments=(), unattended_tails=())
        super().__init__(Sequences(nothing), [()])
        self.costs = [1 + job.tokens.total // LOOKED_UP]
        self._tokens, self._top_k, self._table = job.tokens, work.sparse_top_k, table

    def put(self, slice_rows: SliceRows) -> None:
        """Does nothing, because the step made no rows."""

    def result(self) -> JobResult:
        """Vectors of all sequences."""
        return JobResult(sparse=self._table.look_up(self._tokens, self._top_k))


class ClassifyJob(TextJob):
    """An open Classify: `logits` are [S, labels], or [selected tokens, labels]."""

    def __init__(self, sequences: Sequences, work: Classify, labels: int, limits: PieceLimits = WHOLE) -> None:
        """`sequences`: where tokens are classified, those tokens are selected."""
        super().__init__(sequences, by_length(sequences), limits)
        self.work = work
        self.wanted = Wanted(logits=not work.tokens, token_logits=work.tokens)
        rows = int(sequences.selected.sum()) if work.tokens else len(sequences)
        self.logits = np.empty((rows, labels), dtype=np.float32)

    def put(self, slice_rows: SliceRows) -> None:
        """Puts the logits into the table."""
        numbers = slice_rows.packed.numbers
        self.finite &= slice_rows.finite
        self.logits[self.sequences.selected_places(numbers) if self.work.tokens else numbers] = slice_rows.logits.values

    def result(self) -> JobResult:
        """Logits of all sequences. Raises Internal where a number is not finite."""
        self.finite &= bool(np.isfinite(self.logits).all())
        self.check_finite()
        counts = tuple(self.sequences.selected_counts.tolist()) if self.work.tokens else ()
        return JobResult(scores=byte_view(self.logits), row_lengths=counts)

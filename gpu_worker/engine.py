"""Runs steps: trunk, pooling, scoring and packing over all sequences of all jobs at once.

Launches and never waits: lengths, offsets and indices come from the host, and results come back in one copy.
Knows no settings and no gRPC.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from gpu_worker import packing, scoring
from gpu_worker.computing import OutOfMemory, Part, Progress
from gpu_worker.models.loading import Model
from gpu_worker.outbox import Array, Outbox
from gpu_worker.pooling import Counts
from gpu_worker.progress import EncodeProgress, MaxSimProgress, ScoreProgress, TextProgress
from gpu_worker.step import Member, Rows, Step, row_ranges
from shared.errors import DimensionMismatch, InputTooLong, InvalidInput, UnsupportedDimensions, UnsupportedTask
from shared.jobs import Encode, Job, MaxSim, Score
from shared.vectors import Layout, OutputKind, ScoringMethod

OUTPUTS = frozenset({OutputKind.DENSE, OutputKind.MULTI_VECTOR})
METHODS = frozenset({ScoringMethod.DENSE, ScoringMethod.LATE_INTERACTION})
Delivery = Callable[[list[Array]], None]


class ModelEngine:
    """The `Engine` of a loaded model."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._device = model.placement.device

    def open(self, job: Job) -> Progress:
        """Raises InvalidInput and its kin for what this model cannot do."""
        if isinstance(job.work, MaxSim):
            _check_given(job.work)
            return MaxSimProgress(job.work, self._model.flops_per_token)
        self._check_tokens(job)
        if isinstance(job.work, Encode):
            if not job.work.outputs or not job.work.outputs <= OUTPUTS:
                raise UnsupportedTask("this model gives dense and multi-vector output", field="outputs")
            if not 0 <= job.work.dimensions <= self._model.hidden_size:
                width = self._model.hidden_size
                raise UnsupportedDimensions(f"dimensions must be 1 to {width}", field="dimensions")
            return EncodeProgress(job, job.work, self._model.hidden_size)
        self._check_score(job.work, len(job.tokens))
        return ScoreProgress(job, job.work, self._model.hidden_size, self._model.flops_per_token)

    def _check_tokens(self, job: Job) -> None:
        if not len(job.tokens):
            raise InvalidInput("a job has no sequences", field="jobs")
        longest = max(job.tokens.lengths)
        if longest > self._model.max_tokens:
            raise InputTooLong(f"a sequence has {longest} tokens, the limit is {self._model.max_tokens}")
        ids = np.frombuffer(job.tokens.ids, dtype="<i4")
        if ids.min() < 0 or ids.max() >= self._model.vocabulary_size:
            raise InvalidInput(f"a token id is outside 0 to {self._model.vocabulary_size - 1}")

    @staticmethod
    def _check_score(work: Score, sequences: int) -> None:
        documents = sequences - work.queries
        if work.method not in METHODS:
            raise UnsupportedTask("this model scores by dense and late interaction", field="method")
        if work.queries < 1 or documents < 1:
            raise InvalidInput("a score needs a query and a document", field="queries")
        if work.layout is Layout.PAIRS and work.queries != documents:
            raise InvalidInput("pairs need as many queries as documents", field="documents")

    def step(self, parts: Sequence[Part]) -> None:
        """See `computing.Engine`. Raises OutOfMemory.

        Nothing is delivered before everything was computed, and delivering twice does no harm.
        """
        outbox = Outbox()
        try:
            with torch.inference_mode():
                deliveries = self._texts([part for part in parts if isinstance(part.progress, TextProgress)], outbox)
                for part in parts:
                    if isinstance(part.progress, MaxSimProgress):
                        deliveries.append(self._given(part, part.progress, outbox))
                arrays = outbox.ship()
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
                raise OutOfMemory from error
            raise
        for deliver in deliveries:
            deliver(arrays)
        for part in parts:
            progress = part.progress
            assert isinstance(progress, TextProgress | MaxSimProgress)
            progress.served = part.stop  # parts come in order; set, not counted, so that a second try does no harm
            if progress.served == len(progress.costs) and isinstance(
                progress, EncodeProgress | ScoreProgress | MaxSimProgress
            ):
                progress.complete()

    def _texts(self, parts: Sequence[Part], outbox: Outbox) -> list[Delivery]:
        if not parts:
            return []
        step = Step.of(parts, self._device, self._model.trunk.first_position)
        hidden = self._model.trunk(step.batch)
        rows = Rows(hidden, step, self._model.recipe.pooling)
        deliveries = [_finite(step, hidden, outbox)]
        for member in step.members:
            if isinstance(member.progress, EncodeProgress):
                deliveries += _encode(member, member.progress, rows, outbox)
            elif isinstance(member.progress, ScoreProgress):
                deliveries.append(_score(member, member.progress, rows, outbox))
        return deliveries

    def _given(self, part: Part, progress: MaxSimProgress, outbox: Outbox) -> Delivery:
        work = progress.work
        queries, documents = progress.vectors(self._device)
        chosen = np.arange(part.start, part.stop)
        ends = np.concatenate([[0], np.cumsum(progress.documents)])
        rows, lengths = documents[ends[part.start] : ends[part.stop]], progress.documents[chosen]
        if work.layout is Layout.PAIRS:
            starts = np.concatenate([[0], np.cumsum(progress.queries)])
            partners = queries[starts[part.start] : starts[part.stop]]
            scores = scoring.pairs(partners, progress.queries[chosen], rows, lengths, work.mean)
        else:
            scores = scoring.matrix(queries, progress.queries, rows, lengths, work.mean)
        slot = outbox.add(scores)
        where = (chosen, 0) if work.layout is Layout.PAIRS else (slice(None), chosen)

        def deliver(arrays: list[Array]) -> None:
            progress.scores[where] = arrays[slot]

        return deliver


def _check_given(work: MaxSim) -> None:
    queries, documents = work.queries, work.documents
    if not queries.lengths or not documents.lengths:
        raise InvalidInput("max_sim needs a query and a document", field="documents")
    if queries.dimensions != documents.dimensions:
        raise DimensionMismatch("queries and documents have different dimensions", field="documents")
    if work.layout is Layout.PAIRS and len(queries.lengths) != len(documents.lengths):
        raise InvalidInput("pairs need as many queries as documents", field="documents")


def _finite(step: Step, hidden: Tensor, outbox: Outbox) -> Delivery:
    """Notes, a sequence, whether the model gave numbers; told on the host with the results."""
    slot = outbox.add(torch.isfinite(hidden.float().sum(dim=1)))

    def deliver(arrays: list[Array]) -> None:
        whole = np.logical_and.reduceat(arrays[slot], step.batch.offsets[:-1])
        for member in step.members:
            member.progress.finite &= bool(whole[member.places].all())

    return deliver


def _encode(member: Member, progress: EncodeProgress, rows: Rows, outbox: Outbox) -> list[Delivery]:
    deliveries = []
    if OutputKind.DENSE in progress.work.outputs:
        places, index = progress.dense, member.sequences
        deliveries.append(_ship_rows(progress, places, index, rows.pooled(member.places), outbox))
    if OutputKind.MULTI_VECTOR in progress.work.outputs:
        index = row_ranges(progress.offsets[member.sequences], progress.lengths[member.sequences])
        deliveries.append(_ship_rows(progress, progress.tokens, index, rows.tokens(member.places), outbox))
    return deliveries


def _ship_rows(
    progress: EncodeProgress, place: tuple[Array, ...], index: Counts, rows: Tensor, outbox: Outbox
) -> Delivery:
    packed, scales = packing.pack(rows[:, : progress.dimensions], progress.work.data_type)
    slots = outbox.add(packed), None if scales is None else outbox.add(scales)

    def deliver(arrays: list[Array]) -> None:
        own = None if slots[1] is None else arrays[slots[1]]
        progress.deliver(place, index, arrays[slots[0]], own)  # type: ignore[arg-type]

    return deliver


def _score(member: Member, progress: ScoreProgress, rows: Rows, outbox: Outbox) -> Delivery:
    work, take = progress.work, rows.tokens if progress.late else rows.pooled
    is_query = member.sequences < work.queries
    queries, documents = member.sequences[is_query], member.sequences[~is_query] - work.queries
    query_rows = [take(member.places[is_query])] if len(queries) else []
    document_rows = take(member.places[~is_query]) if len(documents) else None
    lengths = progress.rows_of(member.sequences[~is_query])
    if work.layout is Layout.PAIRS:
        assert document_rows is not None
        scores = scoring.pairs(query_rows[0], progress.rows_of(queries), document_rows, lengths, work.mean)
        slot = outbox.add(scores)
        return lambda arrays: progress.scores.__setitem__((queries, 0), arrays[slot])
    kept = [*progress.query_rows, *((queries, each) for each in query_rows)]
    if document_rows is None:
        return lambda _: setattr(progress, "query_rows", kept)
    known, joined = np.concatenate([index for index, _ in kept]), torch.cat([each for _, each in kept])
    slot = outbox.add(scoring.matrix(joined, progress.rows_of(known), document_rows, lengths, work.mean))

    def deliver(arrays: list[Array]) -> None:
        progress.query_rows = [(known, joined)]
        progress.scores[np.ix_(known, documents)] = arrays[slot]

    return deliver

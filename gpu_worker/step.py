"""The sequences of a step, packed, and the rows they gave: cut and normalised for all jobs at once. No I/O."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gpu_worker import pooling
from gpu_worker.computing import Part
from gpu_worker.pooling import Counts
from gpu_worker.progress import EncodeProgress, ScoreProgress, TextProgress
from gpu_worker.ragged_batch import RaggedBatch, to_device


def row_ranges(starts: Counts, lengths: Counts) -> Counts:
    """[sum of lengths] the numbers from starts[i] to starts[i] + lengths[i] - 1, for every i in turn."""
    ends = np.cumsum(lengths)
    rows: Counts = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One job's sequences of a step: their numbers in the job, and their places in the batch."""

    progress: TextProgress
    sequences: Counts
    places: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """All sequences of a step, packed in ascending length."""

    batch: RaggedBatch
    members: list[Member]

    @classmethod
    def of(cls, parts: Sequence[Part], device: torch.device, first_position: int) -> "Step":
        chosen: list[tuple[TextProgress, Counts]] = []
        for part in parts:
            assert isinstance(part.progress, TextProgress)
            flat = [index for unit in part.progress.units[part.start : part.stop] for index in unit]
            chosen.append((part.progress, np.array(flat, dtype=np.int64)))
        sequences = [progress.sequence(index) for progress, indices in chosen for index in indices]
        lengths = np.array([len(sequence) for sequence in sequences])
        order = np.argsort(lengths, kind="stable")
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        members, start = [], 0
        for progress, indices in chosen:
            own = places[start : start + len(indices)]
            members.append(Member(progress=progress, sequences=indices, places=own))
            start += len(indices)
        batch = RaggedBatch.pack([sequences[each] for each in order], device, first_position)
        return cls(batch=batch, members=members)

    def token_rows(self, places: Counts) -> Counts:
        """Rows of the batch that belong to the sequences at these places, one sequence after the other."""
        offsets, lengths = self.batch.offsets, np.diff(self.batch.offsets)[places]
        return row_ranges(offsets[places], lengths)


class Rows:
    """Pooled and token rows of a step, cut and normalised for all jobs at once, made when first asked for."""

    def __init__(self, hidden: Tensor, step: Step, mode: str) -> None:
        self._hidden, self._step, self._mode = hidden, step, mode
        self._pooled: Tensor | None = None
        self._tokens: Tensor | None = None

    def pooled(self, places: Counts) -> Tensor:
        """[N, H] float32 pooled rows at these places."""
        if self._pooled is None:
            skip = self._each(lambda member: member.progress.skip[member.sequences])
            rows = pooling.pool(self._hidden, self._step.batch, self._mode, skip)
            self._pooled = self._finish(rows, pooled=True, repeat=None)
        return self._take(self._pooled, places)

    def tokens(self, places: Counts) -> Tensor:
        """Token rows [sum of lengths, H] float32 of the sequences at these places."""
        if self._tokens is None:
            self._tokens = self._finish(self._hidden.float(), pooled=False, repeat=np.diff(self._step.batch.offsets))
        return self._take(self._tokens, self._step.token_rows(places))

    def _finish(self, rows: Tensor, *, pooled: bool, repeat: Counts | None) -> Tensor:
        width = rows.shape[1]
        kept = self._each(lambda member: np.full(len(member.places), _dimensions(member.progress, width)))
        unit = self._each(lambda member: np.full(len(member.places), _unit(member.progress, pooled)))
        if repeat is not None:
            kept, unit = np.repeat(kept, repeat), np.repeat(unit, repeat)
        return pooling.normalize(pooling.truncate(rows, kept), unit.astype(np.bool_))

    def _each(self, value: Callable[[Member], Counts]) -> Counts:
        """[S] a number a sequence of the batch."""
        values = np.zeros(len(self._step.batch.lengths), dtype=np.int64)
        for member in self._step.members:
            values[member.places] = value(member)
        return values

    @staticmethod
    def _take(rows: Tensor, index: Counts) -> Tensor:
        return rows.index_select(0, to_device(torch.from_numpy(index), rows.device))


def _dimensions(progress: TextProgress, width: int) -> int:
    return progress.dimensions if isinstance(progress, EncodeProgress) else width


def _unit(progress: TextProgress, pooled: bool) -> bool:
    match progress:
        case EncodeProgress(work=work):
            return work.normalize if pooled else work.normalize_tokens
        case ScoreProgress(work=work):
            return work.unit_rows
    raise AssertionError(progress)

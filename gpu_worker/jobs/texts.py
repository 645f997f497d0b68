"""What jobs over token ids have in common."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpu_worker.flight import Part
from gpu_worker.ragged.batch import Counts, Ids, row_ranges
from gpu_worker.step.shipment import Array, Outbox
from shared.errors import Internal
from shared.jobs import Job, JobResult

if TYPE_CHECKING:
    from gpu_worker.step.outputs import Rows

Delivery = Callable[[list[Array]], None]
"""Takes what a step shipped and puts a job's share into place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One job's sequences of a step: their numbers in the job [n], and their places in the batch [n]."""

    sequences: Counts
    places: Counts


class TextProgress:
    """A job's sequences, and how their rows are wanted.

    `dimensions`: leading ones to keep of every row, 0 for all. `unit_dense`, `unit_tokens`: whether rows get unit
    length. `wants_sparse`: whether sparse vectors are needed. `kept` [T] are the tokens that have a vector.
    """

    dimensions = 0
    unit_dense = True
    unit_tokens = True
    wants_sparse = False

    def __init__(self, job: Job, units: Sequence[tuple[int, ...]], skip: Counts | None = None) -> None:
        """`skip` [S]: tokens at the start of each sequence that pooling leaves out."""
        self.lengths: Counts = np.array(job.tokens.lengths, dtype=np.int64)
        self.offsets: Counts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.ids: Ids = np.frombuffer(job.tokens.ids, dtype="<i4")
        self.skip: Counts = np.zeros_like(self.lengths) if skip is None else skip
        self.second_segments: Counts = np.array(job.second_segments or [0] * len(self.lengths), dtype=np.int64)
        self.tails: Counts = np.array(job.unattended_tails or [0] * len(self.lengths), dtype=np.int64)
        self.kept: npt.NDArray[np.bool_] = np.ones(len(self.ids), dtype=np.bool_)
        self.units = units
        self.costs: Sequence[int] = [sum(job.tokens.lengths[each] for each in unit) for unit in units]
        self.served = 0
        self.finite = True

    def has_texts(self, part: Part) -> bool:
        """Whether a part of the job has sequences; not all units need to."""
        return any(self.units[part.start : part.stop])

    def sequence(self, index: int) -> Ids:
        """Token ids of one sequence."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def kept_counts(self) -> Counts:
        """[S] how many tokens of each sequence have a vector."""
        counts: Counts = np.add.reduceat(self.kept.astype(np.int64), self.offsets[:-1])
        return counts

    @cached_property
    def _kept_before(self) -> Counts:
        """[T] kept tokens of the job before each; once a job, since every step asks."""
        before: Counts = np.cumsum(self.kept) - self.kept
        return before

    def kept_places(self, member: Member) -> Counts:
        """Places of a member's kept tokens among all that the job keeps."""
        own = row_ranges(self.offsets[member.sequences], self.lengths[member.sequences])
        return self._kept_before[own[self.kept[own]]]

    def compute(self, member: Member, rows: "Rows", outbox: Outbox) -> list[Delivery]:
        """Launches what this step gives the job; what it ships is delivered when the step is over."""
        raise NotImplementedError

    def complete(self) -> None:
        """Called in the device thread once every sequence was served."""

    def result(self) -> JobResult:
        """The outcome. Raises the job's own error."""
        raise NotImplementedError

    def check(self) -> None:
        """Raises Internal where the model gave numbers that are none."""
        if not self.finite:
            raise Internal("the model gave numbers that are not finite")

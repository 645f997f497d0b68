"""The sequences of a job, and those of a step, packed. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from gpu_worker.ragged.batch import Counts, Ids, RaggedBatch, row_ranges
from gpu_worker.ragged.token_types import TokenTypes
from gpu_worker.ragged.upload import Upload
from shared.jobs import Job


class Sequences:
    """S sequences of one job, T tokens end to end.

    `ids` [T]; `lengths` [S], `offsets` [S + 1]; of each sequence `skip` [S] tokens at its start that pooling leaves
    out, `second_segments` [S] where its second segment begins (0: nowhere), `tails` [S] tokens at its end that nobody
    attends to. `kept` [T] are the tokens that have a vector: all, until the job is opened.
    """

    def __init__(self, job: Job, skip: Counts | None = None) -> None:
        self.lengths: Counts = np.array(job.tokens.lengths, dtype=np.int64)
        self.offsets: Counts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.ids: Ids = np.frombuffer(job.tokens.ids, dtype="<i4")
        nothing = np.zeros_like(self.lengths)
        self.skip = nothing if skip is None else skip
        self.second_segments: Counts = np.array(job.second_segments, dtype=np.int64) if job.second_segments else nothing
        self.tails: Counts = np.array(job.unattended_tails, dtype=np.int64) if job.unattended_tails else nothing
        self.kept: npt.NDArray[np.bool_] = np.ones(len(self.ids), dtype=np.bool_)

    def __len__(self) -> int:
        """S."""
        return len(self.lengths)

    def one(self, number: int) -> Ids:
        """Token ids of one sequence."""
        return self.ids[self.offsets[number] : self.offsets[number + 1]]

    def kept_of(self, chosen: Counts) -> npt.NDArray[np.bool_]:
        """Which tokens of some sequences, one after the other, have a vector."""
        return self.kept[row_ranges(self.offsets[chosen], self.lengths[chosen])]

    @cached_property
    def kept_counts(self) -> Counts:
        """[S] how many tokens of each sequence have a vector."""
        counts: Counts = np.add.reduceat(self.kept.astype(np.int64), self.offsets[:-1])
        return counts

    def kept_places(self, chosen: Counts) -> Counts:
        """Places of the kept tokens of some sequences among all that the job keeps."""
        counts = self.kept_counts
        return row_ranges((np.cumsum(counts) - counts)[chosen], counts[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One job's sequences of a step: `chosen` [n], their numbers in the job, ascending; `places` [n] in the batch."""

    sequences: Sequences
    chosen: Counts
    places: Counts

    def split(self, first: int) -> tuple["Member", "Member"]:
        """The sequences before number `first`, and the others."""
        middle = int(np.searchsorted(self.chosen, first))
        sides = (slice(None, middle), slice(middle, None))
        before, after = (
            Member(sequences=self.sequences, chosen=self.chosen[side], places=self.places[side]) for side in sides
        )
        return before, after

    @property
    def tokens(self) -> int:
        """Of all of them."""
        return int(self.sequences.lengths[self.chosen].sum())

    def __len__(self) -> int:
        """n."""
        return len(self.chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """All sequences of a step, packed in ascending length, and of one length by how much of them is attended to."""

    batch: RaggedBatch
    members: list[Member]

    @classmethod
    def pack(
        cls,
        chosen: Sequence[tuple[Sequences, Counts]],
        device: torch.device,
        uncounted: int | None,
        types: TokenTypes | None,
        staging: Upload,
    ) -> "Step":
        """Packs these sequences of all jobs, a member each.

        `uncounted` as in `RaggedBatch.pack`; `types`: token types of a model that reads them.
        """
        texts = [sequences.one(number) for sequences, numbers in chosen for number in numbers.tolist()]
        seconds = np.concatenate([sequences.second_segments[numbers] for sequences, numbers in chosen])
        tails = np.concatenate([sequences.tails[numbers] for sequences, numbers in chosen])
        lengths = np.concatenate([sequences.lengths[numbers] for sequences, numbers in chosen])
        order = np.lexsort((tails, lengths))
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        ends = np.cumsum([len(numbers) for _, numbers in chosen])
        members = [
            Member(sequences=sequences, chosen=numbers, places=own)
            for (sequences, numbers), own in zip(chosen, np.split(places, ends[:-1]), strict=True)
        ]
        ordered = [texts[each] for each in order.tolist()]
        batch = RaggedBatch.pack(
            ordered,
            device,
            uncounted,
            types=types,
            second_segments=seconds[order].tolist(),
            tails=tails[order].tolist(),
            staging=staging,
        )
        return cls(batch=batch, members=members)

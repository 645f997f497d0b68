"""The sequences of a job, and the sequences of a step packed into one batch. No I/O."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from gpu_worker.ragged.batch import Counts, Ids, RaggedBatch, row_ranges
from gpu_worker.ragged.token_types import TokenTypes
from gpu_worker.ragged.upload import Upload
from shared.jobs import Job

TokenMask = npt.NDArray[np.bool_]
Select = Callable[[Ids, Counts], TokenMask]
"""Makes the mask [T] of selected tokens from token ids [T] of sequences that begin at offsets [S + 1]."""


class Sequences:
    """S sequences of one job, T tokens end to end; a sequence has a number, its place in the job.

    `ids` [T], `lengths` [S], `offsets` [S + 1]. Pooling leaves out the first `skip` [S] tokens of each sequence. The
    second text of a pair begins at `second_segments` [S], 0 for no pair. No token attends to the last `tails` [S]
    tokens. `selected` [T]: tokens that get a row of their own, a vector or logits.
    """

    def __init__(self, job: Job, skip: Counts | None = None, select: Select | None = None) -> None:
        """`skip`: None for no token. `select`: chooses the selected tokens; None: all tokens."""
        self.lengths: Counts = np.array(job.tokens.lengths, dtype=np.int64)
        self.offsets: Counts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.ids: Ids = np.frombuffer(job.tokens.ids, dtype="<i4")
        zeros = np.zeros_like(self.lengths)
        self.skip = zeros if skip is None else skip
        self.second_segments: Counts = np.array(job.second_segments, dtype=np.int64) if job.second_segments else zeros
        self.tails: Counts = np.array(job.unattended_tails, dtype=np.int64) if job.unattended_tails else zeros
        # Read-only, since `selected_counts` is computed once.
        self._selected = select(self.ids, self.offsets) if select else np.ones(len(self.ids), dtype=np.bool_)

    def __len__(self) -> int:
        """Number of sequences: S."""
        return len(self.lengths)

    @property
    def selected(self) -> TokenMask:
        """Whether each token gets a row of its own: [T]."""
        return self._selected

    def ids_of(self, number: int) -> Ids:
        """Token ids of one sequence."""
        return self.ids[self.offsets[number] : self.offsets[number + 1]]

    def selected_in(self, numbers: Counts) -> TokenMask:
        """Mask of the selected tokens over the tokens of some sequences, one sequence after the other."""
        return self.selected[row_ranges(self.offsets[numbers], self.lengths[numbers])]

    @cached_property
    def selected_counts(self) -> Counts:
        """Number of selected tokens in each sequence: [S]."""
        counts: Counts = np.add.reduceat(self.selected.astype(np.int64), self.offsets[:-1])
        return counts

    def selected_places(self, numbers: Counts) -> Counts:
        """Places of some sequences' selected tokens among all selected tokens of the job."""
        counts = self.selected_counts
        return row_ranges((np.cumsum(counts) - counts)[numbers], counts[numbers])


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSequences:
    """Sequences of one job in a step: their `numbers` [n] in the job, ascending, and `places` [n] in the batch."""

    sequences: Sequences
    numbers: Counts
    places: Counts

    def split(self, first: int) -> tuple["PackedSequences", "PackedSequences"]:
        """Splits them into the sequences with numbers below `first`, and the rest."""
        middle = int(np.searchsorted(self.numbers, first))
        sides = (slice(None, middle), slice(middle, None))
        before, after = (
            PackedSequences(sequences=self.sequences, numbers=self.numbers[side], places=self.places[side])
            for side in sides
        )
        return before, after

    @property
    def tokens(self) -> int:
        """Tokens of all n sequences."""
        return int(self.sequences.lengths[self.numbers].sum())

    def __len__(self) -> int:
        """Number of sequences: n."""
        return len(self.numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """All sequences of a step in one batch, sorted by length and then by unattended tail.

    `batch` is None where no job has a sequence in the step. `packed`: the sequences of each job slice, in their order.
    """

    batch: RaggedBatch | None
    packed: list[PackedSequences]

    @classmethod
    def pack(
        cls,
        selections: Sequence[tuple[Sequences, Counts]],
        device: torch.device,
        uncounted: int | None,
        types: TokenTypes | None,
        upload: Upload,
    ) -> "Step":
        """Packs the sequences of all job slices of a step.

        `selections`: for each job slice the sequences of its job, and the numbers of those in the step, ascending.
        `uncounted`, `types` and `upload`: see `RaggedBatch.pack`.
        """
        texts = [sequences.ids_of(number) for sequences, numbers in selections for number in numbers.tolist()]
        seconds = np.concatenate([sequences.second_segments[numbers] for sequences, numbers in selections])
        tails = np.concatenate([sequences.tails[numbers] for sequences, numbers in selections])
        lengths = np.concatenate([sequences.lengths[numbers] for sequences, numbers in selections])
        order = np.lexsort((tails, lengths))
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        ends = np.cumsum([len(numbers) for _, numbers in selections])
        packed = [
            PackedSequences(sequences=sequences, numbers=numbers, places=slice_places)
            for (sequences, numbers), slice_places in zip(selections, np.split(places, ends[:-1]), strict=True)
        ]
        if not texts:
            return cls(batch=None, packed=packed)
        batch = RaggedBatch.pack(
            [texts[place] for place in order.tolist()],
            device,
            uncounted,
            types=types,
            second_segments=seconds[order].tolist(),
            tails=tails[order].tolist(),
            upload=upload,
        )
        return cls(batch=batch, packed=packed)

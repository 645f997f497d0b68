"""Followers: texts whose first tokens are computed once, with another text of the same batch. Tensors without I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gpu_worker.ragged.texts import offsets_of
from gpu_worker.ragged.token_types import Counts, Ids
from gpu_worker.ragged.upload import Upload, UploadedArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """A text with the token ids `sequence`. `shared` [p] are the places in the batch of its first p tokens, which the
    batch has in other texts; only the tokens from p on are its own."""

    sequence: Ids
    shared: Counts

    @property
    def start(self) -> int:
        """The first token of its own: p."""
        return len(self.shared)

    @property
    def tokens(self) -> Ids:
        """The ids of its own tokens."""
        return self.sequence[self.start :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Followers:
    """The F followers of a batch, whose own tokens are the last of it, from `first` on.

    `layout` [F, 5] is that of `RaggedBatch`, where queries are counted from `first` and keys are places in `rows`.
    On the device: `rows` [R], the places in the batch of all tokens of each follower.
    """

    first: int
    layout: npt.NDArray[np.int64]
    uploaded_rows: UploadedArray

    @classmethod
    def of(cls, followers: Sequence[Follower], first: int, upload: Upload) -> "Followers":
        """Lays followers behind the first `first` tokens of a batch."""
        starts = np.array([follower.start for follower in followers], dtype=np.int64)
        totals = np.array([len(follower.sequence) for follower in followers], dtype=np.int64)
        begins, ends = offsets_of(totals - starts), offsets_of(totals)
        rows = [
            places
            for follower, begin, end in zip(followers, begins[:-1] + first, begins[1:] + first, strict=True)
            for places in (follower.shared, np.arange(begin, end))
        ]
        return cls(
            first=first,
            layout=np.stack([begins[:-1], totals - starts, ends[:-1], totals, starts], axis=1),
            uploaded_rows=upload.add_array(np.concatenate(rows)),
        )

    @property
    def rows(self) -> Tensor:
        return self.uploaded_rows.tensor

    def __len__(self) -> int:
        """Number of followers: F."""
        return len(self.layout)

"""Spans of a batch, for attention kernels of accelerators: sequences that one launch computes. Tensors without I/O."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from gpu_worker.ragged.texts import row_ranges
from gpu_worker.ragged.token_types import Counts
from gpu_worker.ragged.upload import Upload, UploadedArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The tokens of a span that others attend to, where some are left out: the first ones of each sequence, K in all.

    `longest`: the largest number of them in one sequence. On the device: `counts` [n] int32, their number in each
    sequence; `cu_seqlens` [n + 1] int32; `rows` [K] int64, their places in the batch.
    """

    longest: int
    uploaded_counts: UploadedArray
    uploaded_rows: UploadedArray
    uploaded_ends: UploadedArray

    @classmethod
    def of(cls, offsets: Counts, tails: Counts, upload: Upload) -> "Keys":
        """Leaves out the last `tails` [n] tokens of the sequences that begin at `offsets` [n + 1]."""
        lengths = np.diff(offsets) - tails
        ends = np.concatenate([[0], np.cumsum(lengths)])
        return cls(
            longest=int(lengths.max()),
            uploaded_counts=upload.add_array(lengths.astype(np.int32)),
            uploaded_rows=upload.add_array(row_ranges(offsets[:-1], lengths)),
            uploaded_ends=upload.add_array(ends.astype(np.int32)),
        )

    @property
    def counts(self) -> Tensor:
        return self.uploaded_counts.tensor

    @property
    def rows(self) -> Tensor:
        return self.uploaded_rows.tensor

    @property
    def cu_seqlens(self) -> Tensor:
        return self.uploaded_ends.tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Neighbouring sequences, tokens `start` to `stop` of the batch, whose attention is computed in one launch.

    It has tensors and plain numbers only, so that a layer is compiled once for all batches. `longest`: tokens of the
    longest sequence. `cu_seqlens` [n + 1] int32 lies on the device and begins with 0; the rows of `keys` are places in
    the whole batch. `keys` is None where every token is attended to.
    """

    start: int
    stop: int
    longest: int
    uploaded_ends: UploadedArray
    keys: Keys | None

    @property
    def cu_seqlens(self) -> Tensor:
        return self.uploaded_ends.tensor

    @classmethod
    def of(cls, offsets: Counts, tails: Counts, upload: Upload) -> "Span":
        """Makes a span of n sequences that begin at `offsets` [n + 1] and end with `tails` [n] unattended tokens."""
        return cls(
            start=int(offsets[0]),
            stop=int(offsets[-1]),
            longest=int(np.diff(offsets).max()),
            uploaded_ends=upload.add_array((offsets - offsets[0]).astype(np.int32)),
            keys=Keys.of(offsets, tails, upload) if tails.any() else None,
        )

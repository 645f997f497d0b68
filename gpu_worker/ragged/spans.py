"""Spans of a batch, for attention kernels of accelerators: sequences that one launch computes. Tensors without I/O.

FlashAttention starts a program for every tile of the longest sequence, for every sequence and head. One text of 8,000
tokens beside 500 short ones makes 63 times 501 tiles, and all but some 600 of them have nothing to do. So a batch is
split where that leaves a grid mostly empty.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from gpu_worker.device.transfer import Upload, UploadedArray
from gpu_worker.ragged.texts import Counts, row_ranges

TILE = 128
"""Tokens of a sequence that one program of the kernel takes."""
LEAST_SAVED = 512
"""Fewest tiles that a second launch must save: times the heads, thousands of programs, about what a launch costs."""


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


def launches(lengths: Counts) -> list[tuple[int, int]]:
    """Sequences `start` to `stop` of each launch: one, or two where that saves half of the tiles and LEAST_SAVED.

    `lengths` [S] may have any order; the batch is cut where the fewest tiles remain.
    """
    count = len(lengths)
    if count == 1:
        return [(0, 1)]
    tiles = -(-lengths // TILE)
    longest_before, longest_after = np.maximum.accumulate(tiles)[:-1], np.maximum.accumulate(tiles[::-1])[-2::-1]
    places = np.arange(1, count)
    cost = places * longest_before + (count - places) * longest_after
    whole = count * int(tiles.max(initial=0))
    least = int(cost.min(initial=whole))
    if whole - least < LEAST_SAVED or 2 * least > whole:
        return [(0, count)]
    cut = int(places[cost.argmin()])
    return [(0, cut), (cut, count)]

"""One packed batch on the device, its lengths kept on the host. Tensors without I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Ids = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """`count` neighbouring sequences of the same `length`, beginning at token `start`."""

    start: int
    count: int
    length: int

    @property
    def stop(self) -> int:
        """The token after the last."""
        return self.start + self.count * self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedBatch:
    """S sequences laid end to end, T tokens in all, without padding.

    `ids` [1, T] and `positions` [1, T] int64, `cu_seqlens` [S + 1] int32 live on the device; `lengths` and
    `offsets` are the host's copies, and nothing ever reads them back.
    """

    lengths: tuple[int, ...]
    offsets: npt.NDArray[np.int64]
    ids: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    token_types: Tensor | None = None

    @classmethod
    def pack(
        cls,
        sequences: Sequence[Ids],
        device: torch.device,
        first_position: int = 0,
        second_segments: Sequence[int] | None = None,
    ) -> "RaggedBatch":
        """Lays sequences end to end; positions start at `first_position` in each of them.

        `second_segments` are where tokens of type 1 begin in each sequence (0: nowhere); None: no types.
        """
        lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
        offsets = np.zeros(len(sequences) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        total = int(offsets[-1])
        staged = np.empty((2 if second_segments is None else 3, total), dtype=np.int64)
        np.concatenate(list(sequences), out=staged[0], casting="same_kind")
        staged[1] = np.arange(total) - np.repeat(offsets[:-1], lengths) + first_position
        if second_segments is not None:
            seconds = np.where(np.array(second_segments) > 0, second_segments, lengths)
            staged[2] = np.arange(total) - np.repeat(offsets[:-1], lengths) >= np.repeat(seconds, lengths)
        rows = to_device(torch.from_numpy(staged), device)
        return cls(
            lengths=tuple(lengths.tolist()),
            offsets=offsets,
            ids=rows[:1],
            positions=rows[1:2],
            token_types=None if second_segments is None else rows[2:],
            cu_seqlens=to_device(torch.from_numpy(offsets.astype(np.int32)), device),
        )

    @property
    def total(self) -> int:
        """T."""
        return int(self.offsets[-1])

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.lengths)

    def rows_of(self, places: Counts) -> Counts:
        """Rows that belong to the sequences at these places, one sequence after the other."""
        return row_ranges(self.offsets[places], np.diff(self.offsets)[places])

    def runs(self) -> list[Run]:
        """Neighbours of equal length; few where the batch is sorted by length."""
        runs, start = [], 0
        for length, group in groupby(self.lengths):
            run = Run(start=start, count=len(list(group)), length=length)
            runs.append(run)
            start = run.stop
        return runs


def row_ranges(starts: Counts, lengths: Counts) -> Counts:
    """[sum of lengths] the numbers from starts[i] to starts[i] + lengths[i] - 1, for every i in turn."""
    ends = np.cumsum(lengths)
    rows: Counts = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
    return rows


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """Copies without waiting: through pinned memory where the device is another one."""
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)

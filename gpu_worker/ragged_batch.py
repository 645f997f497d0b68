"""One packed batch on the device, its lengths kept on the host. Tensors without I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Ids = npt.NDArray[np.int32]


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

    @classmethod
    def pack(cls, sequences: Sequence[Ids], device: torch.device, first_position: int = 0) -> "RaggedBatch":
        """Lays sequences end to end; positions start at `first_position` in each of them."""
        lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
        offsets = np.zeros(len(sequences) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        total = int(offsets[-1])
        staged = np.empty((2, total), dtype=np.int64)
        np.concatenate(list(sequences), out=staged[0], casting="same_kind")
        staged[1] = np.arange(total) - np.repeat(offsets[:-1], lengths) + first_position
        both = to_device(torch.from_numpy(staged), device)
        return cls(
            lengths=tuple(lengths.tolist()),
            offsets=offsets,
            ids=both[:1],
            positions=both[1:],
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

    def runs(self) -> list[Run]:
        """Neighbours of equal length; few where the batch is sorted by length."""
        runs, start = [], 0
        for length, group in groupby(self.lengths):
            run = Run(start=start, count=len(list(group)), length=length)
            runs.append(run)
            start = run.stop
        return runs


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """Copies without waiting: through pinned memory where the device is another one."""
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)

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
    """`count` neighbouring sequences of the same `length`, beginning at token `start`.

    Their first `attended` tokens are attended to, by all of them.
    """

    start: int
    count: int
    length: int
    attended: int

    @property
    def stop(self) -> int:
        """The token after the last."""
        return self.start + self.count * self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The tokens that are attended to, where those are not all: K in all, the first ones of each sequence.

    `lengths` [S] is the host's copy; on the device `counts` [S] and `cu_seqlens` [S + 1] int32, `rows` [K] int64 are
    their places in the batch.
    """

    lengths: Counts
    counts: Tensor
    rows: Tensor
    cu_seqlens: Tensor

    @classmethod
    def of(cls, offsets: Counts, tails: Counts, device: torch.device) -> "Keys":
        """Without the last `tails` [S] of each sequence."""
        lengths = np.diff(offsets) - tails
        ends = np.concatenate([[0], np.cumsum(lengths)])
        staged = (lengths.astype(np.int32), row_ranges(offsets[:-1], lengths), ends.astype(np.int32))
        counts, rows, cu_seqlens = (to_device(torch.from_numpy(each), device) for each in staged)
        return cls(lengths=lengths, counts=counts, rows=rows, cu_seqlens=cu_seqlens)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedBatch:
    """S sequences laid end to end, T tokens in all, without padding.

    `ids` [1, T] and `positions` [1, T] int64, `cu_seqlens` [S + 1] int32 live on the device; `lengths`, `offsets` and
    `tokens` [T] (the ids) are the host's copies, and nothing ever reads them back. `keys` None: all tokens are
    attended to.
    """

    lengths: tuple[int, ...]
    offsets: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    ids: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    token_types: Tensor | None = None
    keys: Keys | None = None

    @classmethod
    def pack(
        cls,
        sequences: Sequence[Ids],
        device: torch.device,
        uncounted: int | None = None,
        second_segments: Sequence[int] | None = None,
        tails: Sequence[int] = (),
    ) -> "RaggedBatch":
        """Lays sequences end to end; positions start anew in each of them.

        `uncounted` is RoBERTa's padding id, wherever it stands: its position is its own number, and all other tokens
        count from the next number on. None: every token counts, from 0 on. `second_segments` are where tokens of type
        1 begin in each sequence (0: nowhere); None: no types. `tails` are the tokens at the end of each sequence that
        nobody attends to, themselves included; empty: none.
        """
        lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
        offsets = np.zeros(len(sequences) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        total = int(offsets[-1])
        staged = np.empty((2 if second_segments is None else 3, total), dtype=np.int64)
        np.concatenate(list(sequences), out=staged[0], casting="same_kind")
        staged[1] = places = np.arange(total) - np.repeat(offsets[:-1], lengths)
        if uncounted is not None:
            staged[1] = _positions(staged[0], offsets[:-1], lengths, uncounted)
        if second_segments is not None:
            seconds = np.where(np.array(second_segments) > 0, second_segments, lengths)
            staged[2] = places >= np.repeat(seconds, lengths)
        rows = to_device(torch.from_numpy(staged), device)
        return cls(
            lengths=tuple(lengths.tolist()),
            offsets=offsets,
            tokens=staged[0],
            ids=rows[:1],
            positions=rows[1:2],
            token_types=None if second_segments is None else rows[2:],
            cu_seqlens=to_device(torch.from_numpy(offsets.astype(np.int32)), device),
            keys=Keys.of(offsets, np.array(tails, dtype=np.int64), device) if any(tails) else None,
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
        """Neighbours that are equally long and attended to; few where the batch is sorted by both."""
        runs, start = [], 0
        attended = self.lengths if self.keys is None else self.keys.lengths.tolist()
        for (length, keys), group in groupby(zip(self.lengths, attended, strict=True)):
            run = Run(start=start, count=len(list(group)), length=length, attended=keys)
            runs.append(run)
            start = run.stop
        return runs


def _positions(tokens: Counts, starts: Counts, lengths: Counts, uncounted: int) -> Counts:
    """[T] as RoBERTa's create_position_ids_from_input_ids gives them, text by text."""
    counted = tokens != uncounted
    before = np.concatenate([[0], np.cumsum(counted)])
    positions: Counts = (before[1:] - np.repeat(before[starts], lengths)) * counted + uncounted
    return positions


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

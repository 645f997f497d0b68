"""One packed batch on the device, its lengths kept on the host. Tensors without I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.ragged.launches import launches
from gpu_worker.ragged.token_types import Counts, Ids, TokenTypes
from gpu_worker.ragged.upload import Staged, Upload

__all__ = ["Counts", "Ids", "Keys", "LengthRun", "RaggedBatch", "Span", "row_ranges"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRun:
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
    """The tokens of a span that are attended to, where those are not all: K in all, the first ones of each sequence.

    `longest` of them belong to one sequence. On the device `counts` [n] and `cu_seqlens` [n + 1] int32, `rows` [K]
    int64 are their places in the batch.
    """

    longest: int
    staged_counts: Staged
    staged_rows: Staged
    staged_ends: Staged

    @classmethod
    def of(cls, offsets: Counts, tails: Counts, staging: Upload) -> "Keys":
        """Without the last `tails` [S] of each sequence."""
        lengths = np.diff(offsets) - tails
        ends = np.concatenate([[0], np.cumsum(lengths)])
        return cls(
            longest=int(lengths.max()),
            staged_counts=staging.add(lengths.astype(np.int32)),
            staged_rows=staging.add(row_ranges(offsets[:-1], lengths)),
            staged_ends=staging.add(ends.astype(np.int32)),
        )

    @property
    def counts(self) -> Tensor:
        return self.staged_counts.tensor

    @property
    def rows(self) -> Tensor:
        return self.staged_rows.tensor

    @property
    def cu_seqlens(self) -> Tensor:
        return self.staged_ends.tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Neighbouring sequences to which a kernel attends in one launch: those of tokens `start` to `stop`.

    Tensors and plain numbers alone, so that a layer is compiled once for all batches. On the device `cu_seqlens`
    [sequences + 1] int32 begin with 0; rows of `keys` are places in the whole batch.
    """

    start: int
    stop: int
    longest: int
    staged_ends: Staged
    keys: Keys | None

    @property
    def cu_seqlens(self) -> Tensor:
        return self.staged_ends.tensor

    @classmethod
    def of(cls, offsets: Counts, tails: Counts, staging: Upload) -> "Span":
        """Of sequences that begin at `offsets` [n], the end of the last included, but for their last `tails` [n]."""
        return cls(
            start=int(offsets[0]),
            stop=int(offsets[-1]),
            longest=int(np.diff(offsets).max()),
            staged_ends=staging.add((offsets - offsets[0]).astype(np.int32)),
            keys=Keys.of(offsets, tails, staging) if tails.any() else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedBatch:
    """S sequences laid end to end, T tokens in all, without padding.

    `ids` [1, T], `positions` [1, T] int64 and the tensors of `spans` live on the device, once their staging was sent;
    `lengths`, `offsets` and `tokens` [T] (the ids) are the host's copies, and nothing ever reads them back. `attended`
    [S] are the tokens of each sequence that are attended to, its first ones.
    """

    lengths: tuple[int, ...]
    offsets: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    attended: Counts
    staged: Staged
    """[2 or 3, T] int64: ids, positions, and token types where they count."""
    spans: tuple[Span, ...]
    """One, or two where the longest sequence is much longer than most; see `launches`."""

    @classmethod
    def pack(
        cls,
        sequences: Sequence[Ids],
        device: torch.device,
        uncounted: int | None = None,
        *,
        types: TokenTypes | None = None,
        second_segments: Sequence[int] = (),
        tails: Sequence[int] = (),
        staging: Upload | None = None,
    ) -> "RaggedBatch":
        """Lays sequences end to end; positions start anew in each of them.

        `uncounted` is RoBERTa's padding id, wherever it stands: its position is its own number, and all other tokens
        count from the next number on. None: every token counts, from 0 on. `types`: those of a model that reads them;
        `second_segments` are where the second text of a pair begins in each sequence (0: nowhere); empty: no pairs.
        `tails` are the tokens at the end of each sequence that nobody attends to, themselves included; empty: none.
        `staging` sends it to the device later; None: now.
        """
        sending = staging or Upload(device)
        left_out = np.array(tails if any(tails) else [0] * len(sequences), dtype=np.int64)
        lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
        offsets = np.zeros(len(sequences) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        total = int(offsets[-1])
        rows = np.empty((3, total), dtype=np.int64)
        np.concatenate(list(sequences), out=rows[0], casting="same_kind")
        rows[1] = np.arange(total) - np.repeat(offsets[:-1], lengths)
        if uncounted is not None:
            rows[1] = _positions(rows[0], offsets[:-1], lengths, uncounted)
        seconds = np.array(second_segments if any(second_segments) else [0] * len(sequences), dtype=np.int64)
        told = None if types is None else types.of(rows[0], offsets, seconds)
        if told is not None:
            rows[2] = told
        staged = rows[: 2 if told is None else 3]
        batch = cls(
            lengths=tuple(lengths.tolist()),
            offsets=offsets,
            tokens=staged[0],
            attended=lengths - left_out,
            staged=sending.add(staged),
            spans=tuple(
                Span.of(offsets[start : stop + 1], left_out[start:stop], sending) for start, stop in launches(lengths)
            ),
        )
        if staging is None:
            sending.send()
        return batch

    @property
    def ids(self) -> Tensor:
        return self.staged.tensor[:1]

    @property
    def positions(self) -> Tensor:
        return self.staged.tensor[1:2]

    @property
    def token_types(self) -> Tensor | None:
        """[1, T] int64, or None where they do not count."""
        return self.staged.tensor[2:] if len(self.staged.tensor) > 2 else None

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.lengths)

    @property
    def total(self) -> int:
        """T."""
        return int(self.offsets[-1])

    def rows_of(self, places: Counts) -> Counts:
        """Rows that belong to the sequences at these places, one sequence after the other."""
        return row_ranges(self.offsets[places], np.diff(self.offsets)[places])

    def runs(self) -> list[LengthRun]:
        """Neighbours that are equally long and attended to; few where the batch is sorted by both."""
        runs, start = [], 0
        for (length, keys), group in groupby(zip(self.lengths, self.attended.tolist(), strict=True)):
            run = LengthRun(start=start, count=len(list(group)), length=length, attended=keys)
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
    rows: Counts = np.arange(lengths.sum()) + np.repeat(starts - (ends - lengths), lengths)
    return rows

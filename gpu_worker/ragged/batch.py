"""A ragged batch: token ids and offsets on the device, lengths on the host. Tensors without I/O."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.ragged.launches import launches
from gpu_worker.ragged.token_types import Counts, Ids, TokenTypes
from gpu_worker.ragged.upload import Upload, UploadedArray

__all__ = ["Counts", "Ids", "Keys", "LengthRun", "RaggedBatch", "Span", "row_ranges"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRun:
    """`count` neighbouring sequences of the same `length`; the first begins at token `start` of the batch.

    The tokens of a sequence attend to its first `attended` tokens.
    """

    start: int
    count: int
    length: int
    attended: int

    @property
    def stop(self) -> int:
        """Place of the token after the last one of the run."""
        return self.start + self.count * self.length

    def alone(self) -> "list[LengthRun]":
        """The same sequences as runs of one each."""
        return [replace(self, start=start, count=1) for start in range(self.start, self.stop, self.length)]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedBatch:
    """S sequences laid end to end, T tokens in all, without padding.

    `ids` [1, T], `positions` [1, T] int64 and the tensors of `spans` lie on the device once their upload was sent.
    `lengths`, `offsets` and `tokens` [T] (the ids) are the host's copies, so nothing is ever read back. The tokens of a
    sequence attend to its first `attended` [S] tokens. `layout` [S, 5] says the same for kernels on the host, by
    sequence: its first query and their number, its first key and their number, and how many keys precede its queries.
    """

    lengths: tuple[int, ...]
    offsets: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    attended: Counts
    layout: npt.NDArray[np.int64]
    uploaded: UploadedArray
    """[2 or 3, T] int64: ids, positions, and token types where the model reads them."""
    spans: tuple[Span, ...]
    """One span, or two where the longest sequence is much longer than most; see `launches`."""

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
        upload: Upload | None = None,
    ) -> "RaggedBatch":
        """Lays sequences end to end; positions start anew in each of them.

        `uncounted`: RoBERTa's padding id. Wherever it stands its position is the id itself, and the other tokens are
        counted from the id + 1 on. None: every token is counted, from 0 on. `types`: token types of a model that reads
        them. `second_segments`: where the second text of a pair begins in each sequence, 0 for no pair; empty: no
        pairs. `tails`: the number of tokens at the end of each sequence that no token attends to; empty: none.
        `upload`: takes the arrays and is sent later by the caller; None: they are sent at once.
        """
        arrays = upload or Upload(device)
        unattended = np.array(tails if any(tails) else [0] * len(sequences), dtype=np.int64)
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
        token_types = None if types is None else types.of(rows[0], offsets, seconds)
        if token_types is not None:
            rows[2] = token_types
        rows = rows[: 2 if token_types is None else 3]
        starts, attended = offsets[:-1], lengths - unattended
        batch = cls(
            lengths=tuple(lengths.tolist()),
            offsets=offsets,
            tokens=rows[0],
            attended=attended,
            layout=np.stack([starts, lengths, starts, attended, np.zeros_like(starts)], axis=1),
            uploaded=arrays.add_array(rows),
            spans=tuple(
                Span.of(offsets[start : stop + 1], unattended[start:stop], arrays) for start, stop in launches(lengths)
            ),
        )
        if upload is None:
            arrays.send()
        return batch

    @property
    def ids(self) -> Tensor:
        return self.uploaded.tensor[:1]

    @property
    def positions(self) -> Tensor:
        return self.uploaded.tensor[1:2]

    @property
    def token_types(self) -> Tensor | None:
        """[1, T] int64, or None where the model reads none."""
        return self.uploaded.tensor[2:] if len(self.uploaded.tensor) > 2 else None

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.lengths)

    @property
    def total(self) -> int:
        """Tokens of the batch: T."""
        return int(self.offsets[-1])

    def rows_of(self, places: Counts) -> Counts:
        """Rows of the batch that belong to the sequences at these places, one sequence after the other."""
        return row_ranges(self.offsets[places], np.diff(self.offsets)[places])

    def runs(self) -> list[LengthRun]:
        """Runs of neighbours with the same length and the same number of attended tokens; a sorted batch has few."""
        runs, start = [], 0
        for (length, attended), sequences in groupby(zip(self.lengths, self.attended.tolist(), strict=True)):
            run = LengthRun(start=start, count=len(list(sequences)), length=length, attended=attended)
            runs.append(run)
            start = run.stop
        return runs


def _positions(tokens: Counts, starts: Counts, lengths: Counts, uncounted: int) -> Counts:
    """Positions [T] as RoBERTa's create_position_ids_from_input_ids gives them for each sequence by itself."""
    counted = tokens != uncounted
    before = np.concatenate([[0], np.cumsum(counted)])
    positions: Counts = (before[1:] - np.repeat(before[starts], lengths)) * counted + uncounted
    return positions


def row_ranges(starts: Counts, lengths: Counts) -> Counts:
    """Numbers from starts[i] to starts[i] + lengths[i] - 1, for one i after the other: [sum of lengths]."""
    ends = np.cumsum(lengths)
    rows: Counts = np.arange(lengths.sum()) + np.repeat(starts - (ends - lengths), lengths)
    return rows

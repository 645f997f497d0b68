"""A ragged batch: token ids and offsets on the device, lengths on the host. Tensors without I/O."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.device.transfer import Upload, UploadedArray
from gpu_worker.ragged.pieces import Piece, SlotTable
from gpu_worker.ragged.texts import Counts, Ids, PackedTexts, TokenTypes, offsets_of, row_ranges

__all__ = ["Counts", "Ids", "LengthRun", "RaggedBatch"]
TILE = 128
"""Tokens of a sequence that one program of the kernel takes."""
LEAST_SAVED = 512
"""Fewest tiles that a second launch must save: times the heads, thousands of programs, about what a launch costs."""


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


class AdapterRows(NamedTuple):
    """Rows `start` to `stop` - 1 of a batch, which belong to neighbouring sequences with the adapter `number`."""

    number: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The tokens of a launch that others attend to, where some are left out: the first ones of each sequence, K in all.

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
class AttentionLaunch:
    """One launch of an accelerator's attention: neighbouring sequences, tokens `start` to `stop` of the batch.

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
    def of(cls, offsets: Counts, tails: Counts, upload: Upload) -> "AttentionLaunch":
        """Makes the launch for n sequences with `offsets` [n + 1], whose last `tails` [n] tokens are unattended."""
        return cls(
            start=int(offsets[0]),
            stop=int(offsets[-1]),
            longest=int(np.diff(offsets).max()),
            uploaded_ends=upload.add_array((offsets - offsets[0]).astype(np.int32)),
            keys=Keys.of(offsets, tails, upload) if tails.any() else None,
        )


def split_launches(lengths: Counts) -> list[tuple[int, int]]:
    """Splits a batch into launches: sequences `start` to `stop` of one, or of two where that saves half of the tiles
    and LEAST_SAVED.

    FlashAttention starts a program for every tile of the longest sequence, for every sequence and head. One text of
    8,000 tokens beside 500 short ones makes 63 times 501 tiles, and all but some 600 of them have nothing to do.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedBatch(PackedTexts):
    """S sequences laid end to end, T tokens in all, without padding; the last ones may be `pieces` of sequences.

    `ids` [1, T], `positions` [1, T] int64 and the tensors of `launches` lie on the device once their upload was sent.
    `lengths`, `offsets` and `tokens` [T] (the ids) are the host's copies, so nothing is ever read back. The tokens of a
    sequence attend to its first `attended` [S] tokens. `layout` [S, 5] says the same for kernels on the host, by
    sequence: its first query and their number, its first key and their number, and how many keys precede its queries.
    Tokens of a piece that does not begin its sequence attend to more: see `slots`. `beginnings` leaves these out.
    """

    attended: Counts
    layout: npt.NDArray[np.int64]
    uploaded: UploadedArray
    """[2 or 3, T] int64: ids, positions, and token types where the model reads them."""
    launches: tuple[AttentionLaunch, ...]
    """Launches of attention for `beginnings`: one, or two where the longest sequence is much longer than most (see
    `split_launches`), or none where the batch has only later pieces."""
    pieces: tuple[Piece, ...] = ()
    """The last sequences, if these are pieces: first those that begin a sequence."""
    adapters: tuple[AdapterRows, ...] = ()
    """The rows of sequences with an adapter, in their order; empty where none has one."""

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
        pieces: Sequence[Piece] = (),
        adapters: Sequence[int] = (),
        upload: Upload | None = None,
    ) -> "RaggedBatch":
        """Lays sequences end to end, behind them pieces; positions start anew in each sequence.

        `uncounted`: RoBERTa's padding id. Wherever it stands its position is the id itself, and the other tokens are
        counted from the id + 1 on. None: every token is counted, from 0 on. `types`: token types of a model that reads
        them; such a model runs no pieces. `second_segments`: where the second text of a pair begins in
        each sequence, 0 for no pair; empty: no pairs. `tails`: the number of tokens at the end of each sequence that no
        token attends to; empty: none. `pieces`: those that begin a sequence come first. `adapters`: the number of the
        adapter of each sequence and piece, 0 for none; empty: none. `upload`: takes the arrays and is sent
        later by the caller; None: they are sent at once.
        """
        arrays = upload or Upload(device)
        zeros = [0] * len(pieces)
        unattended = np.array([*(tails if any(tails) else [0] * len(sequences)), *zeros], dtype=np.int64)
        texts = [*sequences, *(piece.tokens for piece in pieces)]
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        offsets = offsets_of(lengths)
        total = int(offsets[-1])
        rows = np.empty((3, total), dtype=np.int64)
        np.concatenate(texts, out=rows[0], casting="same_kind")
        rows[1] = np.arange(total) - offsets[:-1].repeat(lengths)
        if uncounted is not None:
            rows[1] = _positions(rows[0], offsets[:-1], lengths, uncounted)
        for place, piece in enumerate(pieces, len(sequences)):
            rows[1, offsets[place] : offsets[place + 1]] = _positions_of_piece(piece, uncounted)
        seconds = np.array([*(second_segments or [0] * len(sequences)), *zeros], dtype=np.int64)
        token_types = None if types is None else types.of(rows[0], offsets, seconds)
        if token_types is not None:
            rows[2] = token_types
        rows = rows[: 2 if token_types is None else 3]
        attended = lengths - unattended
        layout = np.zeros((len(texts), 5), dtype=np.int64)
        layout[:, 0] = layout[:, 2] = offsets[:-1]
        layout[:, 1], layout[:, 3] = lengths, attended
        if pieces:
            layout[len(sequences) :, 3:] = [(piece.stop, piece.start) for piece in pieces]
        beginnings = len(texts) - sum(piece.start > 0 for piece in pieces)
        batch = cls(
            lengths=tuple(lengths.tolist()),
            offsets=offsets,
            tokens=rows[0],
            attended=attended,
            layout=layout,
            uploaded=arrays.add_array(rows),
            launches=tuple(
                AttentionLaunch.of(offsets[start : stop + 1], unattended[start:stop], arrays)
                for start, stop in (split_launches(lengths[:beginnings]) if beginnings else ())
            ),
            pieces=tuple(pieces),
            adapters=_adapter_rows(adapters, offsets) if any(adapters) else (),
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
    def beginnings(self) -> "RaggedBatch":
        """The batch without pieces that do not begin a sequence, for attention: its tokens attend to each other."""
        count = len(self.lengths) - sum(piece.start > 0 for piece in self.pieces)
        return replace(
            self,
            lengths=self.lengths[:count],
            offsets=self.offsets[: count + 1],
            tokens=self.tokens[: self.offsets[count]],
            attended=self.attended[:count],
            layout=self.layout[:count],
            pieces=(),
        )

    @property
    def slots(self) -> SlotTable:
        """Where the keys of its pieces lie, for kernels on the host."""
        first = len(self.lengths) - len(self.pieces)
        return SlotTable.of(self.pieces, self.offsets[first:-1].tolist(), first)

    def piece_rows(self) -> list[slice]:
        """Finds the rows of each piece in the batch."""
        ends = self.offsets[len(self.lengths) - len(self.pieces) :].tolist()
        return [slice(start, stop) for start, stop in pairwise(ends)]

    def runs(self) -> list[LengthRun]:
        """Runs of neighbours with the same length and the same number of attended tokens; a sorted batch has few."""
        runs, start = [], 0
        for (length, attended), sequences in groupby(zip(self.lengths, self.attended.tolist(), strict=True)):
            run = LengthRun(start=start, count=len(list(sequences)), length=length, attended=attended)
            runs.append(run)
            start = run.stop
        return runs


def _adapter_rows(adapters: Sequence[int], offsets: Counts) -> tuple[AdapterRows, ...]:
    """The rows of each run of neighbouring sequences with one adapter. `adapters` [S]: their numbers, 0 for none, whose
    rows are left out; `offsets` [S + 1]: where sequences begin."""
    runs, place = [], 0
    for number, run in groupby(adapters):
        count = len(list(run))
        if number:
            runs.append(AdapterRows(number, int(offsets[place]), int(offsets[place + count])))
        place += count
    return tuple(runs)


def _positions(tokens: Counts, starts: Counts, lengths: Counts, uncounted: int) -> Counts:
    """Positions [T] as RoBERTa's create_position_ids_from_input_ids gives them for each sequence by itself."""
    counted = tokens != uncounted
    before = np.concatenate([[0], np.cumsum(counted)])
    positions: Counts = (before[1:] - np.repeat(before[starts], lengths)) * counted + uncounted
    return positions


def _positions_of_piece(piece: Piece, uncounted: int | None) -> Counts:
    """Positions of the tokens of a piece in their sequence."""
    if uncounted is None:
        return np.arange(piece.start, piece.stop)
    ids = piece.sequence.astype(np.int64)
    positions = _positions(ids, np.zeros(1, dtype=np.int64), np.array([len(ids)]), uncounted)
    return positions[piece.start : piece.stop]

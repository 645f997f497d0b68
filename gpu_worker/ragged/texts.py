"""Texts as the host knows them: token ids, lengths, places, and token types (segment ids). numpy only.

Types are those that the tokenizer's template would give, worked out from ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int64]
Edge = tuple[tuple[int, int], ...]
"""Id and type of each special token before or after a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTexts:
    """S texts end to end, T tokens in all: `lengths` [S], `offsets` [S + 1] and `tokens` [T], the ids."""

    lengths: tuple[int, ...]
    offsets: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]

    @property
    def longest(self) -> int:
        """Tokens of the longest text."""
        return max(self.lengths)

    @property
    def total(self) -> int:
        """Tokens of all texts: T."""
        return int(self.offsets[-1])

    def rows_of(self, places: Counts) -> Counts:
        """Rows that belong to the texts at these places, one text after the other."""
        return row_ranges(self.offsets[places], np.diff(self.offsets)[places])

    def first(self, count: int, *others: Ids) -> "PackedTexts":
        """The first `count` texts, with the texts of token ids `others` behind them."""
        lengths = (*self.lengths[:count], *map(len, others))
        tokens = np.concatenate([self.tokens[: self.offsets[count]], *others]).astype(np.int64)
        return PackedTexts(lengths=lengths, offsets=offsets_of(lengths), tokens=tokens)


def offsets_of(lengths: Sequence[int] | Counts) -> npt.NDArray[np.int64]:
    """Where texts of these `lengths` [S] begin if they lie end to end, and where the last one ends: [S + 1]."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.add.accumulate(lengths, out=offsets[1:])  # in a third of the time that cumsum takes for one text
    return offsets


def row_ranges(starts: Counts, lengths: Counts) -> Counts:
    """Numbers from starts[i] to starts[i] + lengths[i] - 1, for one i after the other: [sum of lengths]."""
    ends = np.cumsum(lengths)
    rows: Counts = np.arange(lengths.sum()) + np.repeat(starts - (ends - lengths), lengths)
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The special tokens before and after a text or a pair, with their types, and the type of the tokens in between.

    In a pair, `body` is the type of the first text; the second text has the type 1.
    """

    before: Edge = ()
    body: int = 0
    after: Edge = ()

    @property
    def types(self) -> set[int]:
        """All types that occur, without the one of a second text."""
        return {self.body, *(kind for _, kind in (*self.before, *self.after))}

    @property
    def length(self) -> int:
        """Number of special tokens."""
        return len(self.before) + len(self.after)


PLAIN = Frame()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTypes:
    """Token types of a model that reads them.

    A text without the special tokens of its frame (its caller sent ids) has the body's type throughout. `zeros`:
    whether the model needs types even where all of them are 0.
    """

    text: Frame = PLAIN
    pair: Frame = PLAIN
    zeros: bool = False

    def of(self, tokens: npt.NDArray[np.integer], offsets: Counts, seconds: Counts) -> Counts | None:
        """Types [T] of S sequences that begin at `offsets` [S + 1]; second texts begin at `seconds` [S] (0: no pair).

        None where the model needs none.
        """
        if not self.zeros and self.text.types == {0} and not seconds.any():
            return None
        lengths, paired = np.diff(offsets), seconds > 0
        starts = offsets[:-1] + np.where(paired, seconds, lengths)
        within_second = np.arange(len(tokens)) >= np.repeat(starts, lengths)
        bodies = np.repeat(np.where(paired, self.pair.body, self.text.body), lengths)
        types: Counts = np.where(within_second, 1, bodies).astype(np.int64)
        for frame, framed in ((self.text, ~paired), (self.pair, paired)):
            _set_types(types, frame, tokens, offsets[:-1][framed], offsets[1:][framed])
        return types if self.zeros or types.any() else None

    def framed(self, text: Ids) -> Ids:
        """Puts a text's special tokens in place of the ids at its ends, where types matter and it is long enough."""
        if self.text.types == {0} or len(text) <= self.text.length:
            return text
        before, after = ([identity for identity, _ in edge] for edge in (self.text.before, self.text.after))
        ids: Ids = np.concatenate([before, text[len(before) : len(text) - len(after)], after]).astype(np.int32)
        return ids


def _set_types(types: Counts, frame: Frame, tokens: npt.NDArray[np.integer], starts: Counts, stops: Counts) -> None:
    """Sets the types of special tokens, in place, in the sequences that have all of them at their ends."""
    edges = [(starts, place, special) for place, special in enumerate(frame.before)]
    edges += [(stops, place - len(frame.after), special) for place, special in enumerate(frame.after)]
    complete = stops - starts >= frame.length
    for ends, place, (identity, _) in edges:
        complete[complete] = tokens[ends[complete] + place] == identity
    for ends, place, (_, kind) in edges:
        types[ends[complete] + place] = kind

"""Sequences of different lengths laid end to end, without padding. Standard library only."""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

assert array("i").itemsize == 4
RANGE_TIMES = 64
"""Most times that the token ranges of a sequence may have its tokens over: so pooling stays cheap beside the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedTokens:
    """Token ids of S sequences, T tokens in all.

    `ids` holds T little-endian int32, `lengths` S counts >= 1 that add up to T. Raises ValueError otherwise.
    """

    ids: bytes
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        if any(length < 1 for length in self.lengths):
            raise ValueError("a sequence has no tokens")
        if sum(self.lengths) * 4 != len(self.ids):
            raise ValueError(f"lengths add up to {sum(self.lengths)} tokens, ids hold {len(self.ids) / 4:g}")

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> "RaggedTokens":
        """Packs lists of ids."""
        flat = array("i")
        for sequence in sequences:
            flat.extend(sequence)
        return cls.packed(flat, list(map(len, sequences)))

    @classmethod
    def packed(cls, flat: "array[int]", lengths: Sequence[int]) -> "RaggedTokens":
        """Takes ids of 4 bytes that lie end to end already."""
        if sys.byteorder == "big":
            flat.byteswap()
        return cls(ids=flat.tobytes(), lengths=tuple(lengths))

    @property
    def total(self) -> int:
        """T, the tokens of all sequences."""
        return len(self.ids) // 4

    @property
    def offsets(self) -> tuple[int, ...]:
        """[S + 1] where each sequence begins, in tokens; the last entry is T."""
        return (0, *accumulate(self.lengths))

    def part(self, start: int, stop: int) -> "RaggedTokens":
        """Sequences `start` to `stop` - 1."""
        lengths = self.lengths[start:stop]
        first = sum(self.lengths[:start])
        return RaggedTokens(ids=self.ids[4 * first : 4 * (first + sum(lengths))], lengths=lengths)

    def __len__(self) -> int:
        """S, the number of sequences."""
        return len(self.lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRanges:
    """Ranges of tokens of S sequences, R in all, those of a sequence after those of the one before it.

    `counts` [S]: ranges of each sequence, at least one. Range i has the tokens `starts` [i] to `stops` [i] - 1 of its
    sequence, at least one. Ranges may overlap. Raises ValueError where the numbers disagree.
    """

    counts: tuple[int, ...]
    starts: tuple[int, ...]
    stops: tuple[int, ...]

    def __post_init__(self) -> None:
        if min(self.counts, default=1) < 1 or not sum(self.counts) == len(self.starts) == len(self.stops):
            raise ValueError("a sequence has no token range, or starts and stops disagree with the counts")
        if any(not 0 <= start < stop for start, stop in zip(self.starts, self.stops, strict=True)):
            raise ValueError("a token range has no tokens")

    @property
    def offsets(self) -> tuple[int, ...]:
        """[S + 1] where the ranges of each sequence begin; the last entry is R."""
        return (0, *accumulate(self.counts))

    def of_each(self) -> list[tuple[tuple[int, int], ...]]:
        """The ranges of each sequence: their starts and stops."""
        ranges = tuple(zip(self.starts, self.stops, strict=True))
        return [ranges[start:stop] for start, stop in pairwise(self.offsets)]

    def select(self, places: Sequence[int]) -> "TokenRanges":
        """The ranges of the sequences at these places, in their order."""
        offsets = self.offsets
        rows = [row for place in places for row in range(offsets[place], offsets[place + 1])]
        return TokenRanges(
            counts=tuple(self.counts[place] for place in places),
            starts=tuple(self.starts[row] for row in rows),
            stops=tuple(self.stops[row] for row in rows),
        )

    def __len__(self) -> int:
        """R, the number of ranges."""
        return len(self.starts)

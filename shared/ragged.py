"""Sequences of different lengths laid end to end, without padding. Standard library only."""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

assert array("i").itemsize == 4


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

    def __len__(self) -> int:
        """S, the number of sequences."""
        return len(self.lengths)

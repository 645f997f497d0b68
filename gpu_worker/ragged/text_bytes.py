"""How many bytes the device keeps of a text in pieces, by its length. No torch."""

from bisect import bisect_right
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBytes:
    """Bytes that the device keeps at most of a text while it is computed in pieces.

    `token_bytes`: of every token: its keys and values in layers that see all earlier tokens, and its last hidden
    states; 0 where texts are not computed in pieces. `recent`: for layers that see less, pairs of the most tokens that
    they keep and the bytes of each.
    """

    token_bytes: int = 0
    recent: tuple[tuple[int, int], ...] = ()

    def of(self, length: int) -> int:
        """Bytes of a text of `length` tokens."""
        return length * self.token_bytes + sum(min(length, most) * size for most, size in self.recent)

    def longest(self, most_bytes: float) -> float:
        """Tokens of the longest text that takes at most so many bytes; `inf` for no limit."""
        if most_bytes == inf:
            return inf
        return bisect_right(range(1, int(most_bytes) // self.token_bytes + 1), most_bytes, key=self.of)


NOTHING = TextBytes()
"""Where no text is computed in pieces."""
ONE_BYTE = TextBytes(token_bytes=1)
"""Counts tokens, for engines whose texts take no memory that is known."""

"""Texts as token ids, end to end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from shared.jobs import NO_TOKENS
from shared.ragged import RaggedTokens

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedBatch:
    """Several texts or pairs, without what only a person would want to see.

    `second_segments` are where the second text of a pair begins in each sequence, 0 where token types do not tell.
    `tails` are the expansion tokens at the end of each sequence that nobody attends to.
    """

    tokens: RaggedTokens
    truncated: tuple[bool, ...]
    prompt_lengths: tuple[int, ...]
    second_segments: tuple[int, ...] = ()
    tails: tuple[int, ...] = ()

    def part(self, places: Sequence[int]) -> "TokenizedBatch":
        """The sequences at these places."""
        offsets, ids = self.tokens.offsets, self.tokens.ids
        some = [ids[4 * offsets[place] : 4 * offsets[place + 1]] for place in places]
        lengths = tuple(self.tokens.lengths[place] for place in places)

        def of(values: tuple[T, ...]) -> tuple[T, ...]:
            return tuple(values[place] for place in places) if values else ()

        return TokenizedBatch(
            tokens=RaggedTokens(ids=b"".join(some), lengths=lengths),
            truncated=of(self.truncated),
            prompt_lengths=of(self.prompt_lengths),
            second_segments=of(self.second_segments),
            tails=of(self.tails),
        )

    def __add__(self, other: "TokenizedBatch") -> "TokenizedBatch":
        """These texts, then those; not of pairs."""
        assert not self.second_segments
        assert not other.second_segments
        ids, lengths = self.tokens.ids + other.tokens.ids, self.tokens.lengths + other.tokens.lengths
        return TokenizedBatch(
            tokens=RaggedTokens(ids=ids, lengths=lengths),
            truncated=self.truncated + other.truncated,
            prompt_lengths=self.prompt_lengths + other.prompt_lengths,
            tails=self.tails + other.tails,
        )


NOTHING = TokenizedBatch(tokens=NO_TOKENS, truncated=(), prompt_lengths=())

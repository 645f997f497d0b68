"""Texts as token ids, end to end, and the slices in which they are made."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shared.jobs import NO_TOKENS
from shared.ragged import RaggedTokens

SLICE_LETTERS = 256 * 1024
"""Texts are tokenised in slices of about this size: the tokenizer keeps hundreds of bytes a token until done."""

T = TypeVar("T")
Watch = Callable[[int], None]
"""Told, after each slice, how many tokens there are so far; raises to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenized:
    """Several texts or pairs, without what only a person would want to see.

    `second_segments` are where the second text of a pair begins in each sequence, 0 where token types do not tell.
    `tails` are the expansion tokens at the end of each sequence that nobody attends to.
    """

    tokens: RaggedTokens
    truncated: tuple[bool, ...]
    prompt_lengths: tuple[int, ...]
    second_segments: tuple[int, ...] = ()
    tails: tuple[int, ...] = ()

    def part(self, places: Sequence[int]) -> "Tokenized":
        """The sequences at these places."""
        offsets, ids = self.tokens.offsets, self.tokens.ids
        some = [ids[4 * offsets[place] : 4 * offsets[place + 1]] for place in places]
        lengths = tuple(self.tokens.lengths[place] for place in places)

        def of(values: tuple[T, ...]) -> tuple[T, ...]:
            return tuple(values[place] for place in places) if values else ()

        return Tokenized(
            tokens=RaggedTokens(ids=b"".join(some), lengths=lengths),
            truncated=of(self.truncated),
            prompt_lengths=of(self.prompt_lengths),
            second_segments=of(self.second_segments),
            tails=of(self.tails),
        )

    def __add__(self, other: "Tokenized") -> "Tokenized":
        """These texts, then those; not of pairs."""
        assert not self.second_segments
        assert not other.second_segments
        ids, lengths = self.tokens.ids + other.tokens.ids, self.tokens.lengths + other.tokens.lengths
        return Tokenized(
            tokens=RaggedTokens(ids=ids, lengths=lengths),
            truncated=self.truncated + other.truncated,
            prompt_lengths=self.prompt_lengths + other.prompt_lengths,
            tails=self.tails + other.tails,
        )


NOTHING = Tokenized(tokens=NO_TOKENS, truncated=(), prompt_lengths=())


def slices(letters: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges of texts with about SLICE_LETTERS together, at least one text each."""
    start = held = 0
    for index, count in enumerate(letters):
        if held and held + count > SLICE_LETTERS:
            yield start, index
            start, held = index, 0
        held += count
    yield start, len(letters)

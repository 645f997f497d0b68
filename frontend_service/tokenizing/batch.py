"""The token ids of several texts, laid end to end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from shared.jobs import NO_TOKENS, RaggedTokens, TokenRanges

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedBatch:
    """Several texts or pairs as a job needs them.

    `second_segments`: where the second text of a pair begins in each sequence, 0 where the model has no token types.
    `unattended_tails`: the length of each sequence's tail: expansion tokens at its end that no token attends to.
    `ranges`: the token ranges of spans; `range_of_span`: the range of each span, in the order of the request; empty: as
    they come. `token_counts`: see `Answer`; empty: those of the sequences.
    """

    tokens: RaggedTokens
    truncated: tuple[bool, ...]
    prompt_lengths: tuple[int, ...]
    second_segments: tuple[int, ...] = ()
    unattended_tails: tuple[int, ...] = ()
    ranges: TokenRanges | None = None
    range_of_span: tuple[int, ...] = ()
    token_counts: tuple[int, ...] = ()

    def select(self, places: Sequence[int]) -> "TokenizedBatch":
        """The sequences at these places, in their order; of documents without what is told of each text."""
        offsets, ids = self.tokens.offsets, self.tokens.ids
        sequences = [ids[4 * offsets[place] : 4 * offsets[place + 1]] for place in places]
        lengths = _selected(self.tokens.lengths, places)
        return TokenizedBatch(
            tokens=RaggedTokens(ids=b"".join(sequences), lengths=lengths),
            truncated=_selected(self.truncated, places) if self.ranges is None else (),
            prompt_lengths=_selected(self.prompt_lengths, places),
            second_segments=_selected(self.second_segments, places),
            unattended_tails=_selected(self.unattended_tails, places),
            ranges=None if self.ranges is None else self.ranges.select(places),
        )

    def __add__(self, other: "TokenizedBatch") -> "TokenizedBatch":
        """These texts, then the others; not for pairs and spans."""
        assert not self.second_segments
        assert not other.second_segments
        assert self.ranges is other.ranges is None
        ids, lengths = self.tokens.ids + other.tokens.ids, self.tokens.lengths + other.tokens.lengths
        return TokenizedBatch(
            tokens=RaggedTokens(ids=ids, lengths=lengths),
            truncated=self.truncated + other.truncated,
            prompt_lengths=self.prompt_lengths + other.prompt_lengths,
            unattended_tails=self.unattended_tails + other.unattended_tails,
        )


NOTHING = TokenizedBatch(tokens=NO_TOKENS, truncated=(), prompt_lengths=())


def _selected(values: tuple[T, ...], places: Sequence[int]) -> tuple[T, ...]:
    """The values at these places; none where a batch has none."""
    return tuple(values[place] for place in places) if values else ()

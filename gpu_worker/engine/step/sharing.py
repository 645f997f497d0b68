"""Which texts of a step share their first tokens, so that these are computed once. numpy only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpu_worker.engine.step.sequences import Kind
from gpu_worker.ragged.followers import Follower
from gpu_worker.ragged.pieces import Piece
from gpu_worker.ragged.prefixes import families, shared_with_previous
from gpu_worker.ragged.texts import offsets_of
from gpu_worker.ragged.token_types import Counts, Ids

LEAST_SPARED = 0.125
"""Part of a step's tokens that must be spared: keys, values and rows of its other texts are copied then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharer:
    """A text of a step that may share its first tokens with others of its `kind`, unless it is `alone`; a `leader` only
    gives some."""

    tokens: Ids
    kind: Kind
    alone: bool = False
    leader: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTokens:
    """`counts` [n]: how many of its first tokens each of n `sharers` has from the one before it in its family; 0 for
    most. `families`: places of sharers, see `prefixes.families`. `followers`: the places of those that have tokens from
    others; neighbours in a family are neighbours here."""

    sharers: Sequence[Sharer]
    counts: Counts
    families: Sequence[Sequence[int]] = ()
    followers: Sequence[int] = ()

    @classmethod
    def of(cls, sharers: Sequence[Sharer], *, joined: bool) -> "SharedTokens":
        """Finds what they share. Where that spares less than LEAST_SPARED they share nothing, unless units are `joined`
        that count on it."""
        counts: Counts = np.zeros(len(sharers), dtype=np.int64)
        texts = [sharer.tokens for sharer in sharers]
        kinds = [(sharer.kind, sharer.alone * place) for place, sharer in enumerate(sharers, 1)]
        alike = sorted(families(texts, kinds), key=lambda family: kinds[family[0]])  # by adapter
        for family in alike:
            counts[family] = shared_with_previous(texts, family)
        counts[[sharer.leader for sharer in sharers]] = 0
        if counts.sum() < max(1, (0 if joined else LEAST_SPARED) * sum(map(len, texts))):
            return cls(sharers=sharers, counts=np.zeros_like(counts))
        followers = [place for family in alike for place in family if counts[place]]
        return cls(sharers=sharers, counts=counts, families=alike, followers=followers)

    def followers_behind(self, whole: Sequence[int], leaders: int, pieces: Sequence[Piece]) -> list[Follower]:
        """The followers, in the order of `followers`, in a batch of the sharers `whole`, behind these `pieces`: first
        those that begin a text, which are the sharers from `leaders` on, then later ones."""
        lengths = np.array([len(sharer.tokens) for sharer in self.sharers], dtype=np.int64)
        later = sum(len(piece.tokens) for piece in pieces if piece.start)
        begins, places, others = np.zeros_like(lengths), self.followers, [*whole, *range(leaders, len(lengths))]
        begins[others] = offsets_of(lengths[others])[:-1]
        first = int(lengths[others].sum()) + later
        begins[places] = first + offsets_of((lengths - self.counts)[places])[:-1]
        return [follower for family in self.families for follower in self._followers_of(family, begins.tolist())]

    def _followers_of(self, family: Sequence[int], begins: Sequence[int]) -> Iterator[Follower]:
        """The followers of a family. `begins`: where the own tokens of each sharer begin in the batch."""
        rows: Counts = np.zeros(0, dtype=np.int64)
        for place in family:
            count, text, begin = int(self.counts[place]), self.sharers[place].tokens, begins[place]
            shared = rows[:count]
            rows = np.concatenate([shared, np.arange(begin, begin + len(text) - count)])
            if count:
                yield Follower(sequence=text, shared=shared)


NONE_SHARED = SharedTokens(sharers=(), counts=np.zeros(0, dtype=np.int64))

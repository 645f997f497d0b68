"""Which texts of a step share their first tokens, so that these are computed once. numpy only."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpu_worker.engine.step.sequences import Kind
from gpu_worker.ragged.pieces import KeySlots, Piece, first_slots
from gpu_worker.ragged.texts import Counts, Ids

LEAST = 16
"""Fewest tokens that two texts share: to look up fewer costs as much as to compute them."""
LEAST_SPARED = 0.125
"""Part of a step's tokens that must be spared: hidden states of its texts are put together anew then."""


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
        alike_texts = sorted(families(texts, kinds), key=lambda family: kinds[family[0]])  # by adapter
        for family in alike_texts:
            counts[family] = shared_with_previous(texts, family)
        counts[[sharer.leader for sharer in sharers]] = 0
        if counts.sum() < max(1, (0 if joined else LEAST_SPARED) * sum(map(len, texts))):
            return cls(sharers=sharers, counts=np.zeros_like(counts))
        followers = [place for family in alike_texts for place in family if counts[place]]
        return cls(sharers=sharers, counts=counts, families=alike_texts, followers=followers)

    def behind(self, begins: Sequence[int], end: int) -> list[Piece]:
        """The followers, in the order of `followers`, as pieces of a batch whose other tokens end at row `end`.
        `begins`: where each other sharer begins in the batch."""
        pieces = list[Piece]()
        for family in self.families:
            slots: tuple[KeySlots, ...] = ()
            for place in family:
                text, count = self.sharers[place].tokens, int(self.counts[place])
                if not count:
                    slots = (KeySlots(None, begins[place], len(text)),)
                    continue
                pieces.append(Piece(text, count, len(text), shared=first_slots(slots, count)))
                slots = pieces[-1].slots(end)
                end += len(text) - count
        return pieces


NONE_SHARED = SharedTokens(sharers=(), counts=np.zeros(0, dtype=np.int64))


def families(texts: Sequence[Ids], kinds: Sequence[Hashable]) -> list[list[int]]:
    """Finds the places of texts that share their first LEAST tokens and their kind: lists of two or more.

    A family is sorted by the bytes of its texts. So no earlier member of it shares more tokens with a text than the
    text right before it.
    """
    by_beginning: defaultdict[tuple[Hashable, bytes], list[int]] = defaultdict(list)
    for place, (text, kind) in enumerate(zip(texts, kinds, strict=True)):
        if len(text) > LEAST:
            by_beginning[kind, text[:LEAST].tobytes()].append(place)
    return [
        sorted(family, key=lambda place: texts[place].tobytes()) for family in by_beginning.values() if len(family) > 1
    ]


def shared_with_previous(texts: Sequence[Ids], family: Sequence[int]) -> list[int]:
    """How many of its first tokens each text of a family has from the text before it: 0, or LEAST and more.

    The last token of a text is always its own, so that every text has a row.
    """
    shared = [min(_common(texts[before], texts[place]), len(texts[place]) - 1) for before, place in pairwise(family)]
    return [0, *(count if count >= LEAST else 0 for count in shared)]


def _common(first: Ids, second: Ids) -> int:
    """Number of tokens that two texts have in common before they differ."""
    length = min(len(first), len(second))
    differs = first[:length] != second[:length]
    place = int(differs.argmax()) if length else 0
    return place if length and differs[place] else length

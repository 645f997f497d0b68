"""Texts that begin alike, found by their token ids. numpy only."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from itertools import pairwise

from gpu_worker.ragged.token_types import Ids

LEAST = 16
"""Fewest tokens that two texts share: to look up fewer costs as much as to compute them."""


def families(texts: Sequence[Ids], kinds: Sequence[Hashable]) -> list[list[int]]:
    """The places of texts that share their first LEAST tokens and their kind: lists of two or more.

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

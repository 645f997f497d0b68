"""What the texts of a job share with each other, and the order in which it serves them. numpy only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from gpu_worker.engine.step.sequences import Sequences
from gpu_worker.ragged.prefixes import families, shared_with_previous
from gpu_worker.ragged.token_types import Counts

Group = tuple[int, ...]
LEAST_FORKED = 4
"""A text that is cut shares a part of so many of its tokens at least: it copies their keys and values, and its room is
held as long as that of the text before it."""
FAMILY_ROOM = 4
"""Texts that are cut and share tokens take this part of all room at most."""
SHARED_COST = 8
"""So many tokens that a text shares with another of its unit cost as much as one that is computed: they take the time
and memory of outputs."""
LEAST_JOINED = 8
"""A text joins the unit of another where it shares a part of so many of its tokens at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A sequence that is cut and takes the keys and values of its first `shared` tokens from the sequence `leader`."""

    leader: int
    shared: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """`groups`: groups of sequences in the order in which they are served. `shared` [S]: first tokens that a sequence
    shares with the one before it in its group, so that no step has it without that one. `forks`: by number, the
    sequences that are cut and begin as another; `runs`: the numbers of each of these with those that follow it, in the
    order in which they are served. `sharing`: whether any of `shared` is more than 0."""

    groups: Sequence[Group]
    shared: Counts
    sharing: bool = False
    forks: dict[int, Fork] = field(default_factory=dict)
    runs: list[list[int]] = field(default_factory=list)

    @classmethod
    def none(cls, sequences: Sequences, groups: Sequence[Group]) -> "Alike":
        """Leaves groups as they are; nothing is shared."""
        return cls(groups=groups, shared=np.zeros(len(sequences), dtype=np.int64))

    @classmethod
    def of(
        cls,
        sequences: Sequences,
        groups: Sequence[Group],
        longest: int,
        cache_tokens: float,
        together: int,
    ) -> "Alike":
        """Brings groups of one sequence together whose sequences begin alike, so that they come into the same step, and
        joins them as far as they cost `together` tokens at most. Those of more than `longest` tokens (0: no limit) are
        cut. `cache_tokens`: see `PieceLimits`."""
        shared: Counts = np.zeros_like(sequences.lengths)
        single = [place for place, group in enumerate(groups) if len(group) == 1 and not sequences.tails[group[0]]]
        is_cut = {place: bool(longest) and int(sequences.lengths[groups[place][0]]) > longest for place in single}
        forks: dict[int, Fork] = {}
        runs: list[list[int]] = []
        orders: list[list[int]] = []
        for family in _families(sequences, groups, [place for place in single if not is_cut[place]]):
            members = [(groups[place][0], count) for place, count in family]
            joined = _joined(members, sequences.lengths, together)
            shared[list(joined)] = list(joined.values())
            orders.append([place for place, _ in family])
        for family in _families(sequences, groups, [place for place in single if is_cut[place]]):
            members = [(groups[place][0], count) for place, count in family]
            for run in _runs(members, sequences.lengths, cache_tokens / FAMILY_ROOM):
                runs.append([number for number, _ in run])
                forks |= {number: Fork(leader=before, shared=count) for (before, _), (number, count) in pairwise(run)}
            orders.append([place for place, _ in family])
        served = _together(groups, orders)
        sharing = bool(shared.any())
        return cls(groups=_with_previous(served, shared), shared=shared, sharing=sharing, forks=forks, runs=runs)


def _families(sequences: Sequences, groups: Sequence[Group], places: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """Families among the groups at some places, queries and documents apart: the place of each member, and how many
    tokens it shares with the member before it."""
    texts = [sequences.ids_of(groups[place][0]) for place in places]
    sides = [groups[place][0] < sequences.queries for place in places]
    for family in families(texts, sides):
        yield list(zip([places[text] for text in family], shared_with_previous(texts, family), strict=True))


def _joined(members: Sequence[tuple[int, int]], lengths: Counts, together: int) -> dict[int, int]:
    """The members of a family that join the unit of the one before, with the tokens that they share with it."""
    joined: dict[int, int] = {}
    unit = together  # what the unit costs so far
    for number, count in members:
        length = int(lengths[number])
        cost = length - count + cost_of_shared(count)
        if count * LEAST_JOINED >= length and unit + cost <= together:
            joined[number], unit = count, unit + cost
        else:
            unit = length
    return joined


def cost_of_shared(tokens: int) -> int:
    """The cost of so many tokens that a text shares with another of its unit."""
    return -(-tokens // SHARED_COST)


def _with_previous(groups: Sequence[Group], shared: Counts) -> list[Group]:
    """Groups, of which those that share tokens with the one before are joined with it."""
    joined: list[Group] = []
    for group in groups:
        if len(group) == 1 and shared[group[0]]:
            joined[-1] += group
        else:
            joined.append(group)
    return joined


def _runs(members: Sequence[tuple[int, int]], lengths: Counts, most_tokens: float) -> Iterator[list[tuple[int, int]]]:
    """Splits a family where a member shares too little with the one before it, or its room would be too much. Leaves
    out what is left alone."""
    run: list[tuple[int, int]] = []
    room = 0
    for number, count in members:
        length = int(lengths[number])
        if run and (count * LEAST_FORKED < length or room + length > most_tokens):
            if len(run) > 1:
                yield run
            run, room = [], 0
        run, room = [*run, (number, count)], room + length
    if len(run) > 1:
        yield run


def _together(groups: Sequence[Group], orders: Sequence[Sequence[int]]) -> list[Group]:
    """The groups with those at the places of each order where the first of these is, in that order."""
    behind = {min(order): order for order in orders}
    moved = {place for order in orders for place in order}
    return [
        groups[place]
        for first in range(len(groups))
        for place in (behind.get(first, ()) if first in moved else (first,))
    ]

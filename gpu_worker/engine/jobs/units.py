"""Units of a job over token ids, in the order in which it serves them: sequences, pairs of them, and pieces of long
sequences. What its texts share with each other decides which of them come together. numpy only."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

import numpy as np

from gpu_worker.engine.step.sequences import Sequences
from gpu_worker.engine.step.sharing import families, shared_with_previous
from gpu_worker.ragged.texts import Counts
from shared.errors import InputTooLong

Group = tuple[int, ...]
NOTHING: Counts = np.zeros(0, dtype=np.int64)
LEAST_FORKED = 4
"""A text that is cut shares at least one in so many of its tokens: its room is held as long as that of others."""
FAMILY_ROOM = 4
"""Texts that are cut and share tokens take at most one part in so many of all room."""
SHARED_COST = 8
"""So many tokens that a text shares with another of its unit cost as much as one that is computed: they take the time
and memory of outputs."""
LEAST_JOINED = 8
"""A text joins the unit of another where it shares at least one in so many of its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A sequence that is cut and takes the keys and values of its first `shared` tokens from the sequence `leader`."""

    leader: int
    shared: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """`groups`: groups of sequences in the order in which they are served. `shared` [S]: first tokens that a sequence
    shares with the one before it in its group, so that no step has it without that one. `sharing`: whether any of
    `shared` is more than 0; else it may be empty. `forks`: by number, the sequences that are cut and begin as another;
    `runs`: the numbers of each of these with those that follow it, in the order in which they are served."""

    groups: Sequence[Group]
    shared: Counts
    sharing: bool = False
    forks: dict[int, Fork] = field(default_factory=dict)
    runs: list[list[int]] = field(default_factory=list)

    @classmethod
    def none(cls, groups: Sequence[Group]) -> "Alike":
        """Leaves groups as they are; nothing is shared."""
        return cls(groups=groups, shared=NOTHING)

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
        lengths, shared = sequences.lengths, np.zeros_like(sequences.lengths)
        single = [place for place, group in enumerate(groups) if len(group) == 1 and not sequences.tails[group[0]]]
        cut = [place for place in single if longest and lengths[groups[place][0]] > longest]
        orders: list[list[int]] = []
        for places, members in _families(sequences, groups, sorted({*single} - {*cut})):
            joined = _joined(members, lengths, together)
            shared[list(joined)] = list(joined.values())
            orders.append(places)
        forks: dict[int, Fork] = {}
        runs: list[list[int]] = []
        for places, members in _families(sequences, groups, cut):
            for run in _runs(members, lengths, cache_tokens / FAMILY_ROOM):
                runs.append([number for number, _ in run])
                forks |= {number: Fork(leader=before, shared=count) for (before, _), (number, count) in pairwise(run)}
            orders.append(places)
        served = _together(groups, orders)
        sharing = bool(shared.any())
        return cls(groups=_with_previous(served, shared), shared=shared, sharing=sharing, forks=forks, runs=runs)


def _families(
    sequences: Sequences, groups: Sequence[Group], places: Sequence[int]
) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """Families among the groups at some places, queries and documents apart: the places of the members, and the number
    of each with how many tokens it shares with the member before it."""
    numbers = [groups[place][0] for place in places]
    texts = [sequences.ids_of(number) for number in numbers]
    for family in families(texts, [number < sequences.queries for number in numbers]):
        members = zip([numbers[text] for text in family], shared_with_previous(texts, family), strict=True)
        yield [places[text] for text in family], list(members)


def _joined(members: Sequence[tuple[int, int]], lengths: Counts, together: int) -> dict[int, int]:
    """Finds the members of a family that join the unit of the one before, with the tokens that they share with it."""
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
    """Computes the cost of so many tokens that a text shares with another of its unit."""
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
        if run and (count * LEAST_FORKED < length or room + length - count > most_tokens):
            if len(run) > 1:
                yield run
            run, room = [], 0
        room += length - count if run else length
        run = [*run, (number, count)]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceLimits:
    """`longest`: most tokens of a piece; 0 where every sequence is computed as a whole. `cache_bytes`: most bytes that
    the device keeps of all texts in pieces. `token_bytes`: what it keeps of each of their tokens, and `state_bytes` of
    each of them: states of layers. `shares`: whether texts that begin alike are computed once. `together`: most tokens
    that a unit of several such texts costs, where a shared token costs less than another; 0: each text is a unit, and
    costs all its tokens."""

    longest: int = 0
    cache_bytes: float = inf
    token_bytes: int = 1
    state_bytes: int = 0
    shares: bool = False
    together: int = 0

    def alike(self, sequences: Sequences, groups: Sequence[Group]) -> Alike:
        """Finds which sequences share tokens with each other, and the order of their groups."""
        if not self.shares or len(sequences) < 2:
            return Alike.none(groups)
        return Alike.of(sequences, groups, self.longest, self.cache_tokens, self.together)

    @property
    def cache_tokens(self) -> float:
        """Tokens of the longest text whose keys and values fit."""
        return max(0.0, self.cache_bytes - self.state_bytes) / self.token_bytes

    def check(self, sequences: Sequences) -> None:
        """Raises InputTooLong for a sequence that would be cut and does not fit into what is kept."""
        if not self.longest or len(sequences.ids) <= self.longest:
            return
        longest = int(sequences.lengths[sequences.tails == 0].max(initial=0))  # those with a tail are never cut
        if longest > self.longest and longest > self.cache_tokens:
            raise InputTooLong(
                f"a sequence has {longest} tokens, --cache-megabytes has room for texts of {int(self.cache_tokens)}"
            )


WHOLE = PieceLimits()
"""No sequence is cut."""


@dataclass(slots=True, kw_only=True)
class Units:
    """Units in the order in which they are served; a piece is a unit, and the pieces of a sequence follow each other.

    `numbers`: the numbers of each unit's sequences. `tokens`: those of each unit. `room`: how many bytes each unit
    keeps on the device from its start on, or gives back at its end where the number is negative; empty where no
    sequence is cut. `forks`: see `Alike`; sequences that take keys and values from each other have room together.
    """

    numbers: list[tuple[int, ...]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    room: list[int] = field(default_factory=list)
    forks: dict[int, Fork] = field(default_factory=dict)
    _runs: dict[int, list[int]] = field(default_factory=dict)  # by the first number of each
    _ranges: dict[int, tuple[int, int]] = field(default_factory=dict)  # by unit, of the pieces
    _lengths: Counts = field(default_factory=lambda: NOTHING)

    @classmethod
    def of(
        cls,
        sequences: Sequences,
        alike: Alike,
        longest: int,
        token_bytes: int = 1,
        state_bytes: int = 0,
    ) -> "Units":
        """Cuts sequences of more than `longest` tokens into pieces (0: none); the rest of their group follows as units
        of one sequence. Sequences with an unattended tail stay whole, since no piece knows where the tail begins.
        `token_bytes`, `state_bytes`: what the device keeps of each token of these, and of each of them."""
        groups = alike.groups
        lengths = sequences.lengths.tolist()
        cut = set[int]()
        if longest and max(lengths, default=0) > longest:
            cut.update(np.flatnonzero((sequences.lengths > longest) & (sequences.tails == 0)).tolist())
        if not cut:
            tokens = [sum(lengths[number] for number in group) for group in groups]
            return cls(numbers=list(groups), tokens=tokens, _lengths=sequences.lengths)
        units = cls(_lengths=sequences.lengths, forks=alike.forks, _runs={run[0]: run for run in alike.runs})
        shared = {number: alike.forks[number].shared if number in alike.forks else 0 for number in cut}
        taken = {number: (lengths[number] - shared[number]) * token_bytes + state_bytes for number in cut}
        returned = dict(taken)
        for run in alike.runs:
            run_bytes = sum(taken[number] for number in run)
            taken |= {number: run_bytes * (number == run[0]) for number in run}
            returned |= {number: run_bytes * (number == run[-1]) for number in run}
        for group in groups:
            if cut.isdisjoint(group):
                units._add(group, sum(lengths[number] for number in group))
                continue
            for number in group:
                most = longest if number in cut else lengths[number]
                units._add_sequence(number, lengths[number], most, taken.get(number, 0), returned.get(number, 0))
        return units

    def _add(self, numbers: tuple[int, ...], tokens: int, room: int = 0) -> None:
        self.numbers.append(numbers)
        self.tokens.append(tokens)
        self.room.append(room)

    def _add_sequence(self, number: int, length: int, longest: int, taken: int, returned: int) -> None:
        """Adds a sequence of its own, in pieces of at most `longest` tokens, and the room that is taken before it and
        returned after it."""
        first = self.forks[number].shared if number in self.forks else 0
        for start in range(first, length, longest):
            stop = min(start + longest, length)
            if stop - start < length:
                self._ranges[len(self.numbers)] = (start, stop)
            self._add((number,), stop - start, taken * (start == first) - returned * (stop == length))

    def texts_tokens(self) -> list[int]:
        """Tokens of the texts of each unit, and those before the first piece of a text that takes them from another."""
        tokens = list(self.tokens)
        for unit, (start, _) in self._ranges.items():
            tokens[unit] += start if self._forks_at(unit, start) else 0
        return tokens

    def _forks_at(self, unit: int, start: int) -> bool:
        """Whether a piece from token `start` on is the first one of a text that takes tokens from another."""
        fork = self.forks.get(self.numbers[unit][0])
        return fork is not None and start == fork.shared

    def costs(self, alike: Alike) -> list[int]:
        """Returns the cost of each unit: tokens that it shares cost less."""
        if not alike.sharing and not alike.forks:
            return self.tokens
        shared = alike.shared.tolist()
        costs = [
            tokens - sum(shared[number] - cost_of_shared(shared[number]) for number in numbers)
            for tokens, numbers in zip(self.tokens, self.numbers, strict=True)
        ]
        for unit, (start, _) in self._ranges.items():
            costs[unit] += cost_of_shared(start) if self._forks_at(unit, start) else 0
        return costs

    @property
    def leaders(self) -> frozenset[int]:
        """The numbers of sequences that others take keys and values from, and that take none themselves."""
        return frozenset(self._runs)

    def run_of(self, number: int) -> list[int]:
        """A sequence and those that take keys and values from it, or from one of these."""
        return self._runs.get(number, [number])

    def costs_with_rows(self, costs: Sequence[int], rows: Counts) -> list[int]:
        """The cost of each unit where a sequence is pooled to `rows` [S] rows, in the step in which it ends.

        A row costs as much as a token at most, so a step of several sequences never has more rows than the tokens it is
        tried with at load. One sequence has as many at most, or one for each token of its own: `JobCheck` sees to it.
        """
        return [
            max(cost, sum(int(rows[number]) for number in numbers if self._ends(unit, number)))
            for unit, (cost, numbers) in enumerate(zip(costs, self.numbers, strict=True))
        ]

    def costs_with_ends(self, costs: Sequence[int], extra: Counts) -> list[int]:
        """The cost of each unit where a sequence costs `extra` [S] more, in the step in which it ends."""
        return [
            cost + sum(int(extra[number]) for number in numbers if self._ends(unit, number))
            for unit, (cost, numbers) in enumerate(zip(costs, self.numbers, strict=True))
        ]

    def _ends(self, unit: int, number: int) -> bool:
        """Whether a unit has the last token of a sequence of its own."""
        return unit not in self._ranges or self._ranges[unit][1] == self._lengths[number]

    def ranges(self, start: int, stop: int) -> tuple[Counts, Counts, Counts]:
        """What units `start` to `stop` - 1 compute, in three arrays [n]: the numbers of their sequences, ascending, the
        first token of each sequence, and the token behind the last one. Pieces of one sequence are joined."""
        count = len(self._lengths)
        if not self._ranges and stop - start == len(self.numbers) and sum(map(len, self.numbers)) == count:
            return np.arange(count), np.zeros(count, dtype=np.int64), self._lengths
        numbers = np.array(sorted({number for unit in self.numbers[start:stop] for number in unit}), dtype=np.int64)
        starts, stops = np.zeros_like(numbers), self._lengths[numbers]
        for number, first, last in self._joined(unit for unit in range(start, stop) if unit in self._ranges):
            place = np.searchsorted(numbers, number)
            starts[place], stops[place] = first, last
        return numbers, starts, stops

    def _joined(self, units: Iterable[int]) -> Iterable[tuple[int, int, int]]:
        """Joins the pieces of each sequence among these units. Returns its number, the first token and the end."""
        joined: dict[int, tuple[int, int]] = {}
        for unit in units:
            (number,), (start, stop) = self.numbers[unit], self._ranges[unit]
            joined[number] = (joined[number][0] if number in joined else start, stop)
        return [(number, *bounds) for number, bounds in joined.items()]

"""What jobs over token ids have in common."""

from collections.abc import Sequence
from math import inf

import numpy as np

from gpu_worker.engine.jobs.units import WHOLE, PieceLimits, Units
from gpu_worker.engine.step.outputs import Outputs
from gpu_worker.engine.step.sequences import PackedSequences, Selection, Sequences
from gpu_worker.ragged.prefixes import LEAST, families, shared_with_previous
from gpu_worker.ragged.sequence_cache import SequenceCache
from gpu_worker.ragged.token_types import Counts
from shared.errors import Internal


class TextJob:
    """Sequences in units; the sequences of a unit are computed in the same step, or a long one in pieces.

    `caches`: by number, those of the sequences whose pieces are being computed.
    """

    def __init__(self, sequences: Sequences, groups: Sequence[tuple[int, ...]], limits: PieceLimits = WHOLE) -> None:
        """`groups`: the numbers of the sequences of each unit, in the order in which units are served, before long ones
        are cut; texts that share tokens are brought together. Raises InputTooLong for a sequence whose keys and values
        do not fit."""
        limits.check(sequences)
        self.sequences = sequences
        shared: Counts = np.zeros_like(sequences.lengths)
        if limits.shares:
            groups, shared = families_together(sequences, groups, limits.longest)
        self.units = Units.of(sequences, groups, limits.longest, limits.text_bytes.of)
        self.costs: Sequence[int] = self.units.costs(shared)
        self.room: Sequence[int] = self.units.room
        self.caches: dict[int, SequenceCache] = {}
        self.finite = True

    def selection(self, start: int, stop: int) -> Selection:
        """What units `start` to `stop` have of the sequences. Makes caches for those that are cut."""
        numbers, starts, stops = self.units.ranges(start, stop)
        lengths = self.sequences.lengths
        for number in numbers[stops - starts < lengths[numbers]].tolist():
            if number not in self.caches:
                self.caches[number] = SequenceCache(int(lengths[number]))
        return Selection(sequences=self.sequences, numbers=numbers, starts=starts, stops=stops, caches=self.caches)

    def drop_caches(self, selection: Selection) -> None:
        """Gives back what was kept for the selection, which was collected, and for no later piece."""
        for number in selection.numbers[selection.ended].tolist():
            self.caches.pop(number, None)
        going_on = ~selection.ended
        for number, stop in zip(selection.numbers[going_on].tolist(), selection.stops[going_on].tolist(), strict=True):
            self.caches[number].collected = stop

    def note_finite(self, packed: PackedSequences, outputs: Outputs) -> None:
        """Notes whether the model's hidden states of these sequences were finite numbers."""
        self.finite &= not len(packed) or outputs.finite(packed)

    def check_finite(self) -> None:
        """Raises Internal where the model gave numbers that are not finite."""
        if not self.finite:
            raise Internal("the model gave numbers that are not finite")


def families_together(
    sequences: Sequences, groups: Sequence[tuple[int, ...]], longest: int
) -> tuple[Sequence[tuple[int, ...]], Counts]:
    """Brings groups of one sequence together whose sequences begin alike, so that these come into one step. Also tells
    how many of its first tokens each sequence shares with the one before it: [S]. Those of more than `longest` tokens
    (0: no limit) are cut and share none."""
    shared: Counts = np.zeros_like(sequences.lengths)
    may_share = (sequences.lengths <= (longest or inf)) & (sequences.lengths > LEAST) & (sequences.tails == 0)
    places = [place for place, group in enumerate(groups) if len(group) == 1 and may_share[group[0]]]
    texts = [sequences.ids_of(groups[place][0]) for place in places]
    is_query = [groups[place][0] < sequences.queries for place in places]
    behind: dict[int, list[int]] = {}  # by the first place of each family: its places, in their new order
    for family in families(texts, is_query):
        members = [places[text] for text in family]
        shared[[groups[place][0] for place in members]] = shared_with_previous(texts, family)
        behind[min(members)] = members
    moved = {place for members in behind.values() for place in members}
    order = [place for first in range(len(groups)) for place in (behind.get(first, []) if first in moved else [first])]
    return [groups[place] for place in order], shared


def by_length(sequences: Sequences) -> list[tuple[int, ...]]:
    """Units of one sequence each, the shortest first."""
    return [(number,) for number in np.argsort(sequences.lengths, kind="stable").tolist()]

"""An open job as the engine sees it, and what jobs over token ids have in common.

A step asks a job for its selection, makes the rows that the job wants, and puts them into it.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from gpu_worker.engine.jobs.units import WHOLE, PieceLimits, Units
from gpu_worker.engine.step.outputs import SliceRows, Wanted
from gpu_worker.engine.step.sequences import Selection, Sequences
from gpu_worker.ragged.pieces import SequenceCache
from gpu_worker.schedule.interface import OpenJob
from shared.errors import Internal


class StepJob(OpenJob, Protocol):
    """An open job of any kind. One that compares rows on the device is a `ComparingJob` as well."""

    sequences: Sequences
    wanted: Wanted

    def selection(self, start: int, stop: int) -> Selection:
        """What units `start` to `stop` have of the job's sequences; there may be none."""

    def drop_caches(self, selection: Selection) -> None:
        """Gives back what was kept for the selection, which was collected, and for no later piece."""

    def put(self, slice_rows: SliceRows) -> None:
        """On the host, once a step's download arrived: puts a job slice's rows into the result. Twice is harmless."""


class TextJob:
    """Sequences in units; the sequences of a unit are computed in the same step, or a long one in pieces.

    `wanted`: the rows that the kind of job makes its result of. `caches`: by number, those of the sequences whose
    pieces are being computed.
    """

    wanted = Wanted()

    def __init__(self, sequences: Sequences, groups: Sequence[tuple[int, ...]], limits: PieceLimits = WHOLE) -> None:
        """`groups`: the numbers of the sequences of each unit, in the order in which units are served, before long ones
        are cut; texts that share tokens are brought together. Raises InputTooLong for a sequence whose keys and values
        do not fit."""
        limits.check(sequences)
        self.sequences = sequences
        alike = limits.alike(sequences, groups)
        self.units = Units.of(sequences, alike, limits.longest, limits.token_bytes)
        self._shared, self._joins = alike.shared, alike.sharing
        self.costs: Sequence[int] = self.units.costs(alike)
        self.spared: Sequence[int] = ()
        if self.costs != self.units.tokens:
            texts = zip(self.units.texts_tokens(), self.costs, strict=True)
            self.spared = [tokens - cost for tokens, cost in texts]
        self.room: Sequence[int] = self.units.room
        self.caches: dict[int, SequenceCache] = {}
        self.finite = True

    def selection(self, start: int, stop: int) -> Selection:
        """What units `start` to `stop` have of the sequences. Makes caches for those that are cut."""
        numbers, starts, stops = self.units.ranges(start, stop)
        joined = self._joins and bool(self._shared[numbers].any())
        if not self.units.room:
            return Selection(self.sequences, numbers, starts, stops, joined=joined, uncut=True)
        leaders = self.units.leaders.intersection(numbers.tolist())
        for number in (*leaders, *numbers[stops - starts < self.sequences.lengths[numbers]].tolist()):
            if number not in self.caches:
                self._add_caches(number)
        return Selection(self.sequences, numbers, starts, stops, caches=self.caches, leaders=leaders, joined=joined)

    def _add_caches(self, number: int) -> None:
        """Makes the cache of a sequence, and those of all that take tokens from it or from one of these: it may be
        given back before they begin."""
        for member in self.units.run_of(number):
            fork = self.units.forks.get(member)
            beginning = () if fork is None else self.caches[fork.leader].slots(fork.shared)
            self.caches[member] = SequenceCache(int(self.sequences.lengths[member]), beginning)

    def drop_caches(self, selection: Selection) -> None:
        """Gives back what was kept for the selection, which was collected, and for no later piece."""
        if self.caches:
            for number in selection.numbers[selection.ended].tolist():
                self.caches.pop(number, None)

    def check_finite(self) -> None:
        """Raises Internal where the model gave the sequences numbers that are not finite."""
        if not self.finite:
            raise Internal("the model gave numbers that are not finite")


def by_length(sequences: Sequences) -> list[tuple[int, ...]]:
    """Units of one sequence each, the shortest first."""
    if len(sequences) == 1:
        return [(0,)]
    return [(number,) for number in np.argsort(sequences.lengths, kind="stable").tolist()]

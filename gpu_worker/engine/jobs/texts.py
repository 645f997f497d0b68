"""What jobs over token ids have in common, and what a step asks of any job."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from gpu_worker.engine.step.download import StepDownload
from gpu_worker.engine.step.outputs import Outputs
from gpu_worker.engine.step.sequences import Member, Sequences
from gpu_worker.loop.interface import RunningJob
from gpu_worker.ragged.batch import Counts
from shared.errors import Internal

Deliver = Callable[[], None]
"""On the host, once the shipment arrived: takes a job's share of it. Twice does no harm."""
Launch = Callable[[StepDownload], Deliver]
"""In the device's order, once the step's outputs are made: what a job computes of its own, and ships."""


class StepJob(RunningJob, Protocol):
    """A job as a step sees it, of whatever kind it is."""

    sequences: Sequences

    def chosen(self, start: int, stop: int) -> Counts:
        """Numbers of the sequences of units `start` to `stop`, ascending; there may be none."""

    def ask(self, start: int, stop: int, member: Member, outputs: Outputs) -> Launch:
        """On the host, before anything is computed: asks for outputs of the `member`, its sequences in the step."""


class TextJob:
    """Sequences in units, of which each is served in one step."""

    def __init__(self, sequences: Sequences, units: Sequence[tuple[int, ...]]) -> None:
        self.sequences, self.units = sequences, units
        lengths = sequences.lengths.tolist()
        self.costs: Sequence[int] = [sum(lengths[each] for each in unit) for unit in units]
        self.finite = True

    def chosen(self, start: int, stop: int) -> Counts:
        return np.array(sorted(number for unit in self.units[start:stop] for number in unit), dtype=np.int64)

    def check(self) -> None:
        """Raises Internal where the model gave numbers that are none."""
        if not self.finite:
            raise Internal("the model gave numbers that are not finite")

    def heed(self, member: Member, outputs: Outputs) -> None:
        """Notes whether the model gave numbers for a member's tokens."""
        self.finite &= not len(member) or outputs.finite(member)


def by_length(sequences: Sequences) -> list[tuple[int, ...]]:
    """A unit a sequence, the shortest first."""
    return [(number,) for number in np.argsort(sequences.lengths, kind="stable").tolist()]

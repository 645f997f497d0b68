"""What jobs over token ids have in common."""

from collections.abc import Sequence

import numpy as np

from gpu_worker.engine.step.outputs import Outputs
from gpu_worker.engine.step.sequences import PackedSequences, Sequences
from gpu_worker.ragged.batch import Counts
from shared.errors import Internal


class TextJob:
    """Sequences in units; the sequences of a unit are computed in the same step."""

    def __init__(self, sequences: Sequences, units: Sequence[tuple[int, ...]]) -> None:
        """`units`: the numbers of each unit's sequences, in the order in which units are served."""
        self.sequences, self.units = sequences, units
        lengths = sequences.lengths.tolist()
        self.costs: Sequence[int] = [sum(lengths[number] for number in unit) for unit in units]
        self.finite = True

    def sequence_numbers(self, start: int, stop: int) -> Counts:
        """Numbers of the sequences of units `start` to `stop`, ascending."""
        return np.array(sorted(number for unit in self.units[start:stop] for number in unit), dtype=np.int64)

    def note_finite(self, packed: PackedSequences, outputs: Outputs) -> None:
        """Notes whether the model's hidden states of these sequences were finite numbers."""
        self.finite &= not len(packed) or outputs.finite(packed)

    def check_finite(self) -> None:
        """Raises Internal where the model gave numbers that are not finite."""
        if not self.finite:
            raise Internal("the model gave numbers that are not finite")


def by_length(sequences: Sequences) -> list[tuple[int, ...]]:
    """Units of one sequence each, the shortest first."""
    return [(number,) for number in np.argsort(sequences.lengths, kind="stable").tolist()]

"""Tells on the host, from token ids, which tokens of a text get no vector, and which pooling leaves out. numpy only."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpu_worker.ragged.batch import Counts, Ids
from shared.card import LateInteraction
from shared.vectors import InputType


class Skiplist:
    """The tokens of a model that get no vector: the first of a text (BGE-M3), the skiplist of late interaction."""

    def __init__(self, late_interaction: LateInteraction | None = None, *, skip_first: bool = False) -> None:
        self._late = late_interaction
        self._skiplist = np.array(late_interaction.skiplist if late_interaction else (), dtype=np.int32)
        self._skip_first = skip_first

    def __call__(self, ids: Ids, offsets: Counts, side: InputType) -> npt.NDArray[np.bool_]:
        """Whether each token gets a vector, [T]: for texts of one side, whose `ids` [T] begin at `offsets` [S + 1]."""
        has_vector = np.ones(len(ids), dtype=np.bool_)
        if self._late is not None and self._late.skips(side):
            has_vector &= ~np.isin(ids, self._skiplist)
        if self._skip_first:
            has_vector[offsets[:-1]] = False
        return has_vector

    def of_scores(self, ids: Ids, offsets: Counts, queries: int) -> npt.NDArray[np.bool_]:
        """Whether each token gets a vector, [T]: the first `queries` texts are queries, the others documents."""
        middle = int(offsets[queries])
        return np.concatenate(
            [
                self(ids[:middle], offsets[: queries + 1], InputType.QUERY),
                self(ids[middle:], offsets[queries:] - middle, InputType.DOCUMENT),
            ]
        )


def instruction_ends(ids: Ids, offsets: Counts, marks: Sequence[tuple[int, ...]]) -> Counts:
    """Numbers of tokens [S] up to the end of the first mark in each sequence; 0 where a sequence has no mark.

    A mark ends the instruction of a text (GritLM, arXiv:2402.09906). `ids` [T] hold S sequences that begin at
    `offsets` [S + 1]. A mark is a run of ids; it counts only where it lies within one sequence.
    """
    first_ends = np.full(len(offsets) - 1, np.iinfo(np.int64).max)
    for mark in marks:
        starts = np.flatnonzero(_occurs(ids, mark))
        sequence = np.searchsorted(offsets, starts, side="right") - 1
        whole = starts + len(mark) <= offsets[sequence + 1]
        ending = (starts + len(mark) - offsets[sequence])[whole]
        np.minimum.at(first_ends, sequence[whole], ending)
    return np.where(first_ends == np.iinfo(np.int64).max, 0, first_ends)


def _occurs(ids: Ids, mark: tuple[int, ...]) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """For each place in `ids`, whether the mark begins there."""
    places = max(0, len(ids) - len(mark) + 1)
    occurs = np.ones(places, dtype=np.bool_)
    for index, identity in enumerate(mark):
        occurs &= ids[index : index + places] == identity
    return occurs

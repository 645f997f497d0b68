"""Finds where the instruction of a text ends, in token ids on the host (GritLM, arXiv:2402.09906). numpy only."""

from collections.abc import Sequence

import numpy as np

from gpu_worker.ragged.batch import Counts, Ids


def ends(ids: Ids, offsets: Counts, marks: Sequence[tuple[int, ...]]) -> Counts:
    """Numbers of tokens [S] up to the end of the first mark in each sequence; 0 where a sequence has no mark.

    `ids` [T] hold S sequences that begin at `offsets` [S + 1]. A mark is a run of ids; it counts only where it lies
    within one sequence.
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

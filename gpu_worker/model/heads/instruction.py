"""Where the instruction of a text ends, found on the host's token ids (GritLM, arXiv:2402.09906). numpy only."""

from collections.abc import Sequence

import numpy as np

from gpu_worker.ragged.batch import Counts, Ids


def ends(ids: Ids, offsets: Counts, marks: Sequence[tuple[int, ...]]) -> Counts:
    """[S] tokens up to and with the first mark of each sequence, 0 where it has none.

    ids [T] of S sequences that begin at `offsets` [S + 1]; a mark is a row of ids that lies in one sequence.
    """
    found = np.full(len(offsets) - 1, np.iinfo(np.int64).max)
    for mark in marks:
        starts = np.flatnonzero(_occurs(ids, mark))
        sequence = np.searchsorted(offsets, starts, side="right") - 1
        whole = starts + len(mark) <= offsets[sequence + 1]
        ending = (starts + len(mark) - offsets[sequence])[whole]
        np.minimum.at(found, sequence[whole], ending)
    return np.where(found == np.iinfo(np.int64).max, 0, found)


def _occurs(ids: Ids, mark: tuple[int, ...]) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Where a row of ids begins."""
    places = max(0, len(ids) - len(mark) + 1)
    occurs = np.ones(places, dtype=np.bool_)
    for index, identity in enumerate(mark):
        occurs &= ids[index : index + places] == identity
    return occurs

"""Decides on the host, from token ids, which tokens of a text get a vector."""

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

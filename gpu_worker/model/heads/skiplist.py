"""Which tokens of a text have a vector, told on the host from ids."""

import numpy as np
import numpy.typing as npt

from gpu_worker.ragged.batch import Counts, Ids
from shared.card import LateInteraction
from shared.vectors import InputType


class Skiplist:
    """Of one model: without the first token (BGE-M3), and without the skiplist of a late-interaction model."""

    def __init__(self, late_interaction: LateInteraction | None = None, *, skip_first: bool = False) -> None:
        self._late = late_interaction
        self._skiplist = np.array(late_interaction.skiplist if late_interaction else (), dtype=np.int32)
        self._skip_first = skip_first

    def __call__(self, ids: Ids, offsets: Counts, side: InputType) -> npt.NDArray[np.bool_]:
        """[T] of texts of one side, whose ids [T] begin at `offsets` [S + 1]."""
        kept = np.ones(len(ids), dtype=np.bool_)
        if self._late is not None and self._late.skips(side):
            kept &= ~np.isin(ids, self._skiplist)
        if self._skip_first:
            kept[offsets[:-1]] = False
        return kept

    def of_scores(self, ids: Ids, offsets: Counts, queries: int) -> npt.NDArray[np.bool_]:
        """[T] where the first `queries` texts are queries and the others documents."""
        middle = int(offsets[queries])
        return np.concatenate(
            [
                self(ids[:middle], offsets[: queries + 1], InputType.QUERY),
                self(ids[middle:], offsets[queries:] - middle, InputType.DOCUMENT),
            ]
        )

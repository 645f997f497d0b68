"""The late-interaction comparisons of one step: every job adds its own, then all are computed at once."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.engine.step.download import StepDownload
from gpu_worker.kernels.maxsim.comparison import Comparison, Mask, MaxSimKernel, Texts
from gpu_worker.ragged.batch import Counts
from shared.vectors import Layout

Comparing = Callable[[], npt.NDArray[np.float32]]
"""Gives one comparison's scores, row-major, once the shipment arrived."""


class Comparisons:
    """Queries are joined, which are few; documents stay where the step's rows lie."""

    def __init__(self, maxsim: MaxSimKernel) -> None:
        self._maxsim = maxsim
        self._queries: list[Tensor] = []
        self._rows = self._scores = 0
        self._added: list[Comparison] = []
        self._slot: int | None = None
        self._shipment: StepDownload | None = None

    def __len__(self) -> int:
        """How many were added."""
        return len(self._added)

    def add(self, queries: Tensor, lengths: Counts, documents: Texts, layout: Layout) -> Comparing:
        """queries [sum of lengths, W] lie end to end; `documents` in the rows that `launch` gets."""
        asked = Texts.end_to_end(lengths)
        moved = Texts(starts=asked.starts + self._rows, lengths=lengths)
        comparison = Comparison(queries=moved, documents=documents, layout=layout)
        self._queries.append(queries)
        self._added.append(comparison)
        self._rows += len(queries)
        start, self._scores = self._scores, self._scores + comparison.count
        stop = self._scores

        def scores() -> npt.NDArray[np.float32]:
            assert self._shipment is not None
            assert self._slot is not None
            return self._shipment.arrays[self._slot][start:stop]  # type: ignore[return-value]

        return scores

    def launch(self, documents: Tensor, kept: Mask | None, shipment: StepDownload) -> None:
        """Computes all of them with documents [T, W], of which `kept` [T] count, and ships their scores."""
        queries = self._queries[0] if len(self._queries) == 1 else torch.cat(self._queries)
        self._shipment = shipment
        self._slot = shipment.add(self._maxsim(queries, documents, self._added, kept))

"""MaxSim on processors whose scores have the same bits whatever else is compared in the same step.

A product of two rows is one sum in one order, the largest of them is the same in any order, and a query's maxima are
added in the order of its rows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpu_worker.kernels.cpu.products import product
from gpu_worker.kernels.maxsim.comparison import Comparison, Mask
from gpu_worker.kernels.maxsim.packed import PackedMaxSim
from shared.vectors import Layout


class FixedMaxSim:
    """The `comparison.MaxSimKernel` of `--same-bits`: a pair and a row of a matrix give the same bits."""

    name = "packed (same bits)"

    def __init__(self) -> None:
        self._packed = PackedMaxSim(product)

    def __call__(
        self, queries: Tensor, documents: Tensor, comparisons: Sequence[Comparison], row_mask: Mask | None = None
    ) -> Tensor:
        """Computes scores (see `comparison.MaxSimKernel`); pairs are compared one after the other."""
        scores = [queries.new_empty(0, dtype=torch.float32)]
        for comparison in comparisons:
            alone = [comparison] if comparison.layout is Layout.MATRIX else _pairs(comparison)
            scores += [self._packed(queries, documents, [part], row_mask) for part in alone]
        return torch.cat(scores)


def _pairs(comparison: Comparison) -> list[Comparison]:
    """Each pair as a matrix of one query and one document."""
    return [
        Comparison(
            queries=comparison.queries.part(place, place + 1),
            documents=comparison.documents.part(place, place + 1),
            layout=Layout.MATRIX,
        )
        for place in range(len(comparison.queries))
    ]

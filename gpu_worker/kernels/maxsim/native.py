"""MaxSim by the processor's kernel, which keeps of all products the largest of each query row alone."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gpu_worker.kernels.cpu.library import KernelLibrary
from gpu_worker.kernels.maxsim.comparison import Comparison, Mask, Texts
from gpu_worker.kernels.maxsim.reference import EMPTY_DOCUMENT
from shared.vectors import Layout


class NativeMaxSim:
    """The `comparison.MaxSimKernel` for processors whose library of kernels is built (`kernels/cpu`).

    A score has the same bits whatever else is compared. Rows in bfloat16 are multiplied as they are where the processor
    has such products; otherwise, and in float16, as float32.
    """

    def __init__(self, kernels: KernelLibrary) -> None:
        assert torch.float32 in kernels.formats
        self.name = f"native ({kernels.instructions})"

    def __call__(
        self, queries: Tensor, documents: Tensor, comparisons: Sequence[Comparison], row_mask: Mask | None = None
    ) -> Tensor:
        """Computes scores (see `comparison.MaxSimKernel`), in all threads of PyTorch."""
        sizes = [(len(part.queries), len(part.documents), int(part.layout is Layout.PAIRS)) for part in comparisons]
        scores: Tensor = torch.ops.selvage.maxsim(
            queries.contiguous(),
            documents.contiguous(),
            *_places([part.queries for part in comparisons]),
            *_places([part.documents for part in comparisons]),
            [number for size in sizes for number in size],
            None if row_mask is None else torch.from_numpy(np.ascontiguousarray(row_mask)),
            EMPTY_DOCUMENT,
        )
        return scores


def _places(texts: Sequence[Texts]) -> tuple[Tensor, Tensor]:
    """First rows and numbers of rows [n] int64 of all texts."""
    nothing = np.empty(0, np.int64)
    starts, lengths = [nothing, *(part.starts for part in texts)], [nothing, *(part.lengths for part in texts)]
    return torch.from_numpy(np.concatenate(starts)), torch.from_numpy(np.concatenate(lengths))

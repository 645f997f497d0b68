"""The interface of row kernels: sums of row ranges, and finished rows. Tensors without I/O."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gpu_worker.ragged.batch import Counts
from gpu_worker.ragged.upload import Upload
from shared.vectors import DataType

PoolRows = Callable[[Tensor], Tensor]
"""A function that pools rows: hidden [T, H] -> float32 [n, H]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedRanges:
    """Places and weights of n ranges of rows, on the host: range i has rows starts[i] to starts[i] + lengths[i] - 1.

    The weight of its first row is first[i], and grows by `growth` from row to row; the weighted sum is divided by
    divisors[i] (float64). A length may be 0. Ranges may lie in any order, with other rows between them.
    """

    starts: Counts
    lengths: Counts
    first: Counts
    growth: int
    divisors: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """Rows packed into bytes: `values` [n, B] uint8, see `packing.pack`; `scales` [n] float32 for INT8.

    `finite` [n] bool: which rows consisted of finite numbers before they were packed.
    """

    values: Tensor
    scales: Tensor | None
    finite: Tensor


class RowKernels(Protocol):
    """Kernels for rows [N, W] float32, bfloat16 or float16; all of them agree with `plain.PlainRows`.

    Sums and lengths are float32. The result for a row or a range depends on it alone, to the last bit. `index` [n]
    int64 selects rows, None all. `dimensions` is the number of leading dimensions to keep (Matryoshka,
    arXiv:2205.13147), 0 for all. `unit` scales rows to unit length; a row of zeros stays.
    """

    name: str

    def weighted_sum(self, ranges: WeightedRanges, upload: Upload) -> PoolRows:
        """Adds the ranges to `upload`; the function it returns sums each of them, after `upload` was sent."""

    def finished(self, rows: Tensor, index: Tensor | None, dimensions: int, unit: bool) -> Tensor:
        """Selects, cuts and normalises rows: [n, D] float32."""

    def packed(
        self, rows: Tensor, index: Tensor | None, dimensions: int, unit: bool, data_type: DataType
    ) -> PackedRows:
        """Selects, cuts, normalises and packs rows."""

    def products(self, left: Tensor, right: Tensor) -> Tensor:
        """Multiplies each of some rows with each of others: float32 [Q, W] and [N, W] -> [Q, N]. Products are the one
        result that may depend on how many rows there are, unless the processor's kernels make them."""

    def finite(self, rows: Tensor) -> Tensor:
        """Tells which rows consist of finite numbers: [N] bool."""

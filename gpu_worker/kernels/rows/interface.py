"""What a step has done to rows, and who does it. Tensors without I/O."""

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
"""hidden [T, H] -> float32 [n, H]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """n runs of rows, told on the host: run i has rows starts[i] to starts[i] + lengths[i] - 1, none where 0.

    The weight of its first row is first[i], that of each further one is larger by `growth`; the sum of all rows by
    their weights is divided by divisors[i] (float64). They may lie in any order, with other rows between them.
    """

    starts: Counts
    lengths: Counts
    first: Counts
    growth: int
    divisors: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """Rows as they travel: `values` [n, B] uint8, see `packing.pack`; `scales` [n] float32 of INT8.

    `finite` [n] bool: which rows consisted of numbers before they were packed.
    """

    values: Tensor
    scales: Tensor | None
    finite: Tensor


class RowKernels(Protocol):
    """A way to work on rows [N, W] float32, bfloat16 or float16; all of them agree with `plain.PlainRows`.

    Sums and lengths are float32. What becomes of a row or of a run of rows depends on it alone, to the last bit.
    Rows are taken in the order of `index` [n] int64; None takes all, as they lie. `dimensions` are the leading numbers
    that are kept (Matryoshka, arXiv:2205.13147), 0 all; of unit length where `unit`, but a row of zeros stays.
    """

    name: str

    def weighted_sum(self, segments: Segments, staging: Upload) -> PoolRows:
        """What sums each run, once `staging` was sent."""

    def finished(self, rows: Tensor, index: Tensor | None, dimensions: int, unit: bool) -> Tensor:
        """[n, D] float32."""

    def packed(
        self, rows: Tensor, index: Tensor | None, dimensions: int, unit: bool, data_type: DataType
    ) -> PackedRows:
        """The same as bytes."""

    def finite(self, rows: Tensor) -> Tensor:
        """[N] bool: which rows consist of numbers."""

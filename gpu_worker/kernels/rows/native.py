"""Sums of row ranges and finished rows by the processor's kernels in C++, one call each."""

import numpy as np
import torch
from torch import Tensor

from gpu_worker.kernels.cpu.library import KernelLibrary
from gpu_worker.kernels.cpu.products import product
from gpu_worker.kernels.rows.interface import PackedRows, PoolRows, WeightedRanges
from gpu_worker.kernels.rows.packing import pack
from gpu_worker.kernels.rows.plain import PlainRows
from gpu_worker.ragged.upload import Upload
from shared.vectors import DataType


class NativeRows:
    """The `interface.RowKernels` by `source/rows.cpp`; the twin serves number formats that the kernels lack."""

    name = "native"

    def __init__(self, library: KernelLibrary) -> None:
        self._formats, self._plain = library.formats, PlainRows()

    def weighted_sum(self, ranges: WeightedRanges, upload: Upload) -> PoolRows:
        table = torch.from_numpy(
            np.stack((ranges.starts, ranges.lengths, ranges.first), axis=1).astype(np.int64, copy=False)
        )
        divisors = torch.from_numpy(ranges.divisors.astype(np.float64, copy=False))

        def run(hidden: Tensor) -> Tensor:
            rows = hidden if hidden.dtype in self._formats else hidden.float()
            sums: Tensor = torch.ops.selvage.weighted_sum(rows.contiguous(), table, ranges.growth, divisors)
            return sums

        return run

    def finished(self, rows: Tensor, index: Tensor | None, dimensions: int, unit: bool) -> Tensor:
        return self._finished(rows, index, dimensions, unit)[0]

    def packed(
        self, rows: Tensor, index: Tensor | None, dimensions: int, unit: bool, data_type: DataType
    ) -> PackedRows:
        leading, finite = self._finished(rows, index, dimensions, unit)
        values, scales = pack(leading, data_type)
        return PackedRows(values=values, scales=scales, finite=finite)

    def products(self, left: Tensor, right: Tensor) -> Tensor:
        return product(right, left).T

    def finite(self, rows: Tensor) -> Tensor:
        if rows.dtype not in self._formats:
            return self._plain.finite(rows)
        finite: Tensor = torch.ops.selvage.finite_rows(rows.contiguous())
        return finite

    def _finished(self, rows: Tensor, index: Tensor | None, dimensions: int, unit: bool) -> tuple[Tensor, Tensor]:
        """Finished rows [n, D] float32, and which of them consist of finite numbers [n]."""
        if rows.dtype not in self._formats:
            rows, index = (rows if index is None else rows.index_select(0, index)).float(), None
        values, finite = torch.ops.selvage.finished_rows(rows.contiguous(), index, dimensions, unit)
        return values, finite

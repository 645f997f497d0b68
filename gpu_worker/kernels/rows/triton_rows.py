"""Sums of row ranges and finished rows by Triton, one launch each, for CUDA.

It is imported only where there is a CUDA device: nothing else in the worker needs Triton. It never waits for the device
and reads nothing back. Many programs sum a long range in chunks of a fixed size, and a second launch of the same
kernel adds up the chunks; there are no atomics, so the bits are the same every time.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.device.transfer import Upload
from gpu_worker.kernels.rows import row_tiles
from gpu_worker.kernels.rows.row_kernels import ALIGNMENT, PackedRows, PoolRows, WeightedRanges, aligned_rows
from shared.vectors import DataType

CHUNK_ROWS = 128
"""Rows of a range that one program sums: few enough that one long text keeps many programs busy."""
SUMMED_ROWS, SUMMED_COLUMNS = 32, 128
"""Block that is summed at once. All calls use one size: with another, sums would round differently."""
FINISHED_ROWS, FINISHED_COLUMNS = 8, 256
"""Block that a program finishes at once."""
WARPS = 4
EPSILON = 1e-12
"""The least length that a row is divided by, as in torch.nn.functional.normalize."""
TINY = torch.finfo(torch.float32).tiny
KINDS = {
    None: (row_tiles.FLOAT32.value, 32),
    DataType.FLOAT32: (row_tiles.FLOAT32.value, 32),
    DataType.FLOAT16: (row_tiles.FLOAT16.value, 16),
    DataType.BFLOAT16: (row_tiles.BFLOAT16.value, 16),
    DataType.INT8: (row_tiles.INT8.value, 8),
    DataType.BINARY: (row_tiles.BINARY.value, 1),
}
"""The kernel's number for each data type, and bits in one of its values."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def sum_constants(dtype: torch.dtype) -> dict[str, Any]:
    """Constants that `sum_segments` is compiled with, by the names of its parameters."""
    return {"LANES": ALIGNMENT // dtype.itemsize, "BLOCK_N": SUMMED_ROWS, "BLOCK_W": SUMMED_COLUMNS}


def finish_constants(dtype: torch.dtype, dimensions: int) -> dict[str, Any]:
    """Constants that `finish_rows` is compiled with: one variant for multiples of 16 dimensions, one for others."""
    return {
        "EPSILON": EPSILON,
        "TINY": TINY,
        "LANES": ALIGNMENT // dtype.itemsize,
        "PART": 1 if dimensions % 16 else 16,
        "BLOCK_N": FINISHED_ROWS,
        "BLOCK_W": FINISHED_COLUMNS,
    }


class TritonRows:
    """The `RowKernels` for CUDA.

    For each dtype of rows three variants are compiled: one that sums, two that finish. Widths, counts and data
    types are plain arguments.
    """

    def weighted_sum(self, ranges: WeightedRanges, upload: Upload) -> PoolRows:
        table, growth = ChunkTable.of(ranges, CHUNK_ROWS), ranges.growth
        chunks = upload.add_array(table.chunks)
        joins = None if table.joins is None else upload.add_array(table.joins)

        def run(hidden: Tensor) -> Tensor:
            sums = _summed(hidden, chunks.tensor, growth)
            return (sums if joins is None else _summed(sums, joins.tensor, 0))[:, : hidden.shape[1]]

        return run

    def finished(self, rows: Tensor, index: Tensor | None, dimensions: int, unit: bool) -> Tensor:
        kind, bits = KINDS[None]
        return _finished(rows, index, dimensions, unit, kind, bits)[0].view(torch.float32)

    def packed(
        self, rows: Tensor, index: Tensor | None, dimensions: int, unit: bool, data_type: DataType
    ) -> PackedRows:
        values, scales, finite = _finished(rows, index, dimensions, unit, *KINDS[data_type])
        return PackedRows(values=values, scales=scales if data_type is DataType.INT8 else None, finite=finite)

    def products(self, left: Tensor, right: Tensor) -> Tensor:
        return left @ right.T

    def finite(self, rows: Tensor) -> Tensor:
        return _finished(rows, None, 0, False, row_tiles.NOTHING.value, 0)[2]

    def warm(self, device: torch.device) -> None:
        """Compiles every variant that a call can reach, by calling it."""
        row_range = WeightedRanges(
            starts=np.zeros(1, int), lengths=np.ones(1, int), first=np.ones(1, int), growth=0, divisors=np.ones(1)
        )
        for dtype in DTYPES:
            rows, upload = torch.zeros(1, 16, dtype=dtype, device=device), Upload(device)
            total = self.weighted_sum(row_range, upload)
            upload.send()
            total(rows)
            for dimensions in (16, 1):
                self.finished(rows, None, dimensions, unit=True)


def _summed(rows: Tensor, table: Tensor, growth: int) -> Tensor:
    """Sums [len(table), W] float32 of rows [N, W] by a table of `ChunkTable`; wider where alignment needs it."""
    rows, constants = aligned_rows(rows), sum_constants(rows.dtype)
    width = rows.shape[1]
    sums = torch.empty(len(table), width, dtype=torch.float32, device=rows.device)
    if sums.numel():
        with torch.cuda.device_of(rows):  # Triton launches on the current device
            row_tiles.sum_segments[(len(table), -(-width // SUMMED_COLUMNS))](
                *(rows, table, sums, width // constants["LANES"], growth), **constants, num_warps=WARPS
            )
    return sums


def _finished(
    rows: Tensor, index: Tensor | None, dimensions: int, unit: bool, kind: int, bits: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Launches `finish_rows`: values [n, B] uint8, scales [n] float32 (for INT8 only), finite [n] bool."""
    device, width = rows.device, min(dimensions or rows.shape[1], rows.shape[1])
    count = len(rows) if index is None else len(index)
    rows, constants = aligned_rows(rows), finish_constants(rows.dtype, width)
    values = torch.empty(count, -(-width * bits // 8), dtype=torch.uint8, device=device)
    scales = torch.empty(count, dtype=torch.float32, device=device)
    finite = torch.empty(count, dtype=torch.uint8, device=device)
    chosen = torch.empty(0, dtype=torch.int64, device=device) if index is None else index
    if count:
        with torch.cuda.device_of(rows):
            row_tiles.finish_rows[(-(-count // FINISHED_ROWS),)](
                *(rows, chosen, values, scales, finite, int(index is not None), count),
                *(rows.shape[1] // constants["LANES"], width // constants["PART"], int(unit), kind),
                **constants,
                num_warps=WARPS,
            )
    return values, scales, finite.view(torch.bool)


FIELDS = 4
FIRST, ROWS, WEIGHT, DIVISOR = range(FIELDS)
"""Columns: first row, number of rows, weight of the first row, divisor (the bits of a float32)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTable:
    """Tables of sums: `chunks` [C, 4] int32 of all ranges, in order; `joins` [n, 4] int32 sum each range's chunks.

    `joins` is None where every range is one chunk. Sums of chunks are already divided, so joining them is a sum. If
    any range has several chunks, the others are joined from their single chunk, which changes no bit.
    """

    chunks: npt.NDArray[np.int32]
    joins: npt.NDArray[np.int32] | None

    @classmethod
    def of(cls, ranges: WeightedRanges, chunk_rows: int) -> "ChunkTable":
        """Cuts ranges into chunks of `chunk_rows` rows; the last has the rest. An empty range has one too."""
        lengths = ranges.lengths
        counts = np.maximum(-(-lengths // chunk_rows), 1)
        ends = np.cumsum(counts)
        before = (np.arange(counts.sum()) - np.repeat(ends - counts, counts)) * chunk_rows
        chunks = np.empty((len(before), FIELDS), np.int32)
        chunks[:, FIRST] = np.repeat(ranges.starts, counts) + before
        chunks[:, ROWS] = np.minimum(np.repeat(lengths, counts) - before, chunk_rows)
        chunks[:, WEIGHT] = np.repeat(ranges.first, counts) + ranges.growth * before
        chunks[:, DIVISOR] = np.repeat(ranges.divisors, counts).astype(np.float32).view(np.int32)
        if len(chunks) == len(lengths):
            return cls(chunks=chunks, joins=None)
        joins = np.empty((len(lengths), FIELDS), np.int32)
        joins[:, FIRST], joins[:, ROWS], joins[:, WEIGHT] = ends - counts, counts, 1
        joins[:, DIVISOR] = np.float32(1).view(np.int32)
        return cls(chunks=chunks, joins=joins)

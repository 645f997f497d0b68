"""Operations on rows: sums of row ranges; rows cut, normalised, and packed into bytes. Tensors without I/O.

It holds what all kernels promise, the kernels of processors (ours in C++, and PyTorch's operators as their twin), and
the choice among these and Triton's (`triton_rows`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.device.transfer import Upload
from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.cpu.library import KernelLibrary
from gpu_worker.kernels.cpu.products import product
from gpu_worker.ragged.batch import Counts
from gpu_worker.ragged.texts import row_ranges
from shared.vectors import DataType, MultiVectors

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
    """Rows packed into bytes: `values` [n, B] uint8, see `pack`; `scales` [n] float32 for INT8.

    `finite` [n] bool: which rows consisted of finite numbers before they were packed.
    """

    values: Tensor
    scales: Tensor | None
    finite: Tensor


class RowKernels(Protocol):
    """Kernels for rows [N, W] float32, bfloat16 or float16; all of them agree with `PlainRows`.

    Sums and lengths are float32. The result for a row or a range depends on it alone, to the last bit. `index` [n]
    int64 selects rows, None all. `dimensions` is the number of leading dimensions to keep (Matryoshka,
    arXiv:2205.13147), 0 for all. `unit` scales rows to unit length; a row of zeros stays.
    """

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


@cache
def choose(device: torch.device) -> RowKernels:
    """Returns Triton's kernels on CUDA, on processors ours in C++ where they are built.

    The first call on CUDA compiles them: the warm-up makes it before a worker serves.
    """
    if device.type != "cuda":
        kernels = library.load()
        return NativeRows(kernels) if kernels.formats and device.type == "cpu" else PlainRows()
    try:
        from gpu_worker.kernels.rows.triton_rows import TritonRows
    except ImportError:  # PyTorch without Triton, which comes with its CUDA wheels on Linux only
        return PlainRows()
    triton_rows = TritonRows()
    triton_rows.warm(device)
    return triton_rows


class PlainRows:
    """The `RowKernels` for processors, and for devices without Triton."""

    def weighted_sum(self, ranges: WeightedRanges, upload: Upload) -> PoolRows:
        """Sums each range as a bag of rows: embedding_bag adds them in order, so batch mates change no bit."""
        lengths = ranges.lengths
        begins = np.cumsum(lengths) - lengths
        places = np.arange(lengths.sum()) - np.repeat(begins, lengths)
        shares = np.repeat(ranges.first, lengths) + ranges.growth * places
        divided = (shares / np.repeat(ranges.divisors, lengths)).astype(np.float32)
        rows, bags = upload.add_array(row_ranges(ranges.starts, lengths)), upload.add_array(begins)
        weights = upload.add_array(divided)

        def run(hidden: Tensor) -> Tensor:
            per_row = weights.tensor
            return F.embedding_bag(rows.tensor, hidden.float(), bags.tensor, mode="sum", per_sample_weights=per_row)

        return run

    def finished(self, rows: Tensor, index: Tensor | None, dimensions: int, unit: bool) -> Tensor:
        chosen = (rows if index is None else rows.index_select(0, index)).float()
        leading = chosen[:, :dimensions] if dimensions else chosen
        return F.normalize(leading, dim=1) if unit else leading

    def packed(
        self, rows: Tensor, index: Tensor | None, dimensions: int, unit: bool, data_type: DataType
    ) -> PackedRows:
        leading = self.finished(rows, index, dimensions, unit)
        values, scales = pack(leading, data_type)
        return PackedRows(values=values, scales=scales, finite=torch.isfinite(leading.sum(dim=1)))

    def products(self, left: Tensor, right: Tensor) -> Tensor:
        return left @ right.T

    def finite(self, rows: Tensor) -> Tensor:
        """Looks at sums, which are finite where all numbers of a row are, unless the sum exceeds float32."""
        return torch.isfinite(rows.float().sum(dim=1))


class NativeRows:
    """The `RowKernels` by `source/rows.cpp`; the twin serves dtypes that the kernels lack."""

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
        """Returns finished rows [n, D] float32, and which of them consist of finite numbers [n]."""
        if rows.dtype not in self._formats:
            rows, index = (rows if index is None else rows.index_select(0, index)).float(), None
        values, finite = torch.ops.selvage.finished_rows(rows.contiguous(), index, dimensions, unit)
        return values, finite


TORCH_TYPES = {
    DataType.FLOAT32: torch.float32,
    DataType.FLOAT16: torch.float16,
    DataType.BFLOAT16: torch.bfloat16,
}


def pack(rows: Tensor, data_type: DataType) -> tuple[Tensor, Tensor | None]:
    """Packs float32 rows [N, D] into bytes [N, B] uint8, and scales [N] float32 for INT8.

    INT8 is symmetric per row: value = int8 x scale, scale = largest magnitude / 127. BINARY packs eight dimensions
    into a byte, most significant bit first, 1 where >= 0, padded with zeros.
    """
    if data_type is DataType.INT8:
        scales = rows.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / 127
        return (rows / scales[:, None]).round().clamp(-127, 127).to(torch.int8).view(torch.uint8), scales
    if data_type is DataType.BINARY:
        bits = torch.nn.functional.pad((rows >= 0).to(torch.uint8), (0, -rows.shape[1] % 8))
        weights = 2 ** torch.arange(7, -1, -1, dtype=torch.uint8, device=rows.device)
        return (bits.view(len(bits), bits.shape[1] // 8, 8) * weights).sum(dim=2, dtype=torch.uint8), None
    return rows.to(TORCH_TYPES[data_type]).contiguous().view(torch.uint8), None


def unpack(vectors: MultiVectors, keep_half: bool = False) -> Tensor:
    """Unpacks vectors into rows [N, D] on the CPU: float32, but FLOAT16 and BFLOAT16 stay so with `keep_half`.

    BINARY reads as +1 and -1.
    """
    dtype = TORCH_TYPES.get(vectors.data_type, torch.float32) if keep_half else torch.float32
    if not vectors.rows:
        return torch.zeros(0, vectors.dimensions, dtype=dtype)
    data = torch.frombuffer(bytearray(vectors.data), dtype=torch.uint8)
    if vectors.data_type is DataType.INT8:
        scales = torch.frombuffer(bytearray(vectors.scales), dtype=torch.float32)
        return data.view(torch.int8).view(vectors.rows, -1).float() * scales[:, None]
    if vectors.data_type is DataType.BINARY:
        bits = np.unpackbits(data.view(vectors.rows, -1).numpy(), axis=1, count=vectors.dimensions)
        return torch.from_numpy(bits).float().mul_(2).sub_(1)
    return data.view(TORCH_TYPES[vectors.data_type]).view(vectors.rows, -1).to(dtype)


ALIGNMENT = 16
"""Alignment of rows in bytes: the widest read of a thread."""


def aligned_rows(rows: Tensor) -> Tensor:
    """Returns `rows` [N, W] if all rows begin at multiples of 16 bytes, else a copy of which this is true.

    A copy may be wider, with zeros behind each row. Other addresses would make Triton compile another variant.
    """
    missing = -rows.shape[1] % (ALIGNMENT // rows.element_size())
    if missing:
        return F.pad(rows, (0, missing))
    rows = rows.contiguous()
    return rows if rows.data_ptr() % ALIGNMENT == 0 else rows.clone()

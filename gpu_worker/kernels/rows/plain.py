"""Sums of row ranges and finished rows by PyTorch's operators, for processors; the twin of the kernels."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.kernels.rows.interface import PackedRows, PoolRows, WeightedRanges
from gpu_worker.kernels.rows.packing import pack
from gpu_worker.ragged.texts import row_ranges
from gpu_worker.ragged.upload import Upload
from shared.vectors import DataType


class PlainRows:
    """The `interface.RowKernels` for processors, and for devices without Triton."""

    name = "plain"

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

"""Sums of segments and finished rows by PyTorch's operators: what processors run, and what kernels are held against."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.kernels.rows.interface import PackedRows, PoolRows, Segments
from gpu_worker.kernels.rows.packing import pack
from gpu_worker.ragged.batch import row_ranges
from gpu_worker.ragged.upload import Upload
from shared.vectors import DataType


class PlainRows:
    """See `interface.RowKernels`."""

    name = "plain"

    def weighted_sum(self, segments: Segments, staging: Upload) -> PoolRows:
        """As one bag of rows a segment: embedding_bag sums each in order, so batch mates cannot change a bit."""
        lengths = segments.lengths
        begins = np.cumsum(lengths) - lengths
        places = np.arange(lengths.sum()) - np.repeat(begins, lengths)
        shares = np.repeat(segments.first, lengths) + segments.growth * places
        divided = (shares / np.repeat(segments.divisors, lengths)).astype(np.float32)
        rows, bags = staging.add_array(row_ranges(segments.starts, lengths)), staging.add_array(begins)
        weights = staging.add_array(divided)

        def run(hidden: Tensor) -> Tensor:
            shared = weights.tensor
            return F.embedding_bag(rows.tensor, hidden.float(), bags.tensor, mode="sum", per_sample_weights=shared)

        return run

    def finished(self, rows: Tensor, index: Tensor | None, dimensions: int, unit: bool) -> Tensor:
        chosen = (rows if index is None else rows.index_select(0, index)).float()
        kept = chosen[:, :dimensions] if dimensions else chosen
        return F.normalize(kept, dim=1) if unit else kept

    def packed(
        self, rows: Tensor, index: Tensor | None, dimensions: int, unit: bool, data_type: DataType
    ) -> PackedRows:
        kept = self.finished(rows, index, dimensions, unit)
        values, scales = pack(kept, data_type)
        return PackedRows(values=values, scales=scales, finite=torch.isfinite(kept.sum(dim=1)))

    def finite(self, rows: Tensor) -> Tensor:
        """By their sums, which are numbers where all of a row are, unless they exceed float32."""
        return torch.isfinite(rows.float().sum(dim=1))

"""Rows aligned for kernels, which read 16 bytes at once."""

from torch import Tensor
from torch.nn import functional as F

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

"""Rows as kernels read them: 16 bytes at once."""

from torch import Tensor
from torch.nn import functional as F

ALIGNMENT = 16
"""Bytes: the widest read of a thread. Rows begin at multiples of it."""


def aligned_rows(rows: Tensor) -> Tensor:
    """`rows` [N, W] itself, unless its rows do not begin at multiples of 16 bytes; then a copy whose rows do.

    Such a copy may be wider, with zeros behind each row. Triton compiles apart for addresses that are no multiples of
    16; so there are none.
    """
    missing = -rows.shape[1] % (ALIGNMENT // rows.element_size())
    if missing:
        return F.pad(rows, (0, missing))
    rows = rows.contiguous()
    return rows if rows.data_ptr() % ALIGNMENT == 0 else rows.clone()

"""float32 products by oneDNN, where it rounds nothing: twice as fast as PyTorch's own library on some processors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

BATCH = 12
"""Products of a test."""
EXACT = 1e-5
"""Largest error, as a share of the largest product. Factors rounded to bfloat16 are off by a hundred times as much."""


@contextmanager
def products() -> Iterator[None]:
    """Lets oneDNN multiply float32, where PyTorch would take another library: twice as fast on AMD from 64 tokens on.

    PyTorch offers this only as permission to round factors to bfloat16. oneDNN does not round on processors without
    matrix units for bfloat16; callers must have checked that (`is_exact`). The setting belongs to the process, not to
    the thread: only one thread at a time may be in here.
    """
    setting: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    usual = setting.fp32_precision
    setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = usual


def is_exact(depth: int) -> bool:
    """Tests whether `products` multiply in full float32, over sums of `depth` numbers; matrix units do not."""
    generator = torch.Generator().manual_seed(0)
    for length in (64, 512):
        query, key, value = (torch.randn(BATCH, length, depth, generator=generator) for _ in range(3))
        weights = torch.rand(BATCH, length, length, generator=generator)
        for left, right in ((query, key.transpose(1, 2)), (weights, value)):
            try:
                with products():
                    product = torch.bmm(left, right)
            except (AttributeError, RuntimeError):  # another build of PyTorch
                return False
            expected = torch.bmm(left.double(), right.double())
            if (product - expected).abs().max() > EXACT * expected.abs().max():
                return False
    return True

"""Whether a processor has products of numbers of eight bits."""

import pytest
import torch

from gpu_worker.model.tune.fp8 import TYPE, scaled


def has_products() -> bool:
    """Whether PyTorch on this processor multiplies such numbers by row."""
    try:
        scaled(*(torch.zeros(16, 16, dtype=TYPE),) * 2, torch.ones(16, 1), torch.ones(1, 16), None)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return True


needs_products = pytest.mark.skipif(not has_products(), reason="this PyTorch has no such products on a processor")

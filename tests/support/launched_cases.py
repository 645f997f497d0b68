"""What kernels for packed sequences are asked: batches in one launch and in two, tails, grouped heads, terms."""

import numpy as np
import pytest
import torch

from gpu_worker.kernels.attention.interface import AttentionTerms, OneByOne
from gpu_worker.kernels.attention.varlen import Varlen
from gpu_worker.ragged.batch import RaggedBatch

CPU = torch.device("cpu")
FEW, MANY = (1, 9, 5, 30), (*([1, 9, 5] * 33), 900)
"""The second ones are attended to in two launches."""

batches = pytest.mark.parametrize(
    ("lengths", "tails"),
    [(FEW, ()), (FEW, (0, 3, 0, 29)), (MANY, ()), (MANY, (*([0, 3, 2] * 33), 20))],
    ids=["whole", "tails", "two launches", "two launches with tails"],
)
grouped = pytest.mark.parametrize("groups", [1, 4])
terms = pytest.mark.parametrize(
    "terms", [AttentionTerms(scale=0.5, causal=c, window=w) for c in (True, False) for w in (None, 1, 4)]
)


def equals_the_twin(
    attention: Varlen, terms: AttentionTerms, groups: int, lengths: tuple[int, ...], tails: tuple[int, ...]
) -> None:
    """Wherever something is attended to at all."""
    batch = RaggedBatch.pack([np.zeros(length, dtype=np.int32) for length in lengths], CPU, tails=tails)
    assert len(batch.spans) == (2 if lengths is MANY else 1)
    torch.manual_seed(0)
    query = torch.randn(batch.total, 4, 8).transpose(0, 1)
    key, value = (torch.randn(batch.total, 4 // groups, 8).transpose(0, 1) for _ in range(2))
    expected = OneByOne()(query, key, value, batch, terms)
    ours = attention(query, key, value, batch, terms)
    defined = torch.isfinite(expected).all(dim=2)
    assert torch.allclose(ours[defined], expected[defined], atol=1e-6)
    assert defined.all() or (tails and terms.window)

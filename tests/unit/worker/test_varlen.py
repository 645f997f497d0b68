"""What we ask of PyTorch's varlen attention, held against the twin with a stand-in that runs on a CPU.

The kernel itself is proven by tests/gpu on a device only.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen

from gpu_worker.models.attention import OneByOne, Terms, Varlen
from gpu_worker.ragged_batch import RaggedBatch

CPU = torch.device("cpu")


def stand_in(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, window: tuple[int, int], scale: float) -> Tensor:
    """As its documentation says: [T, H, D]; a window of (left, right) tokens, -1 for no bound."""
    output = torch.empty_like(query)
    for start, stop in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        q, k, v = (each[start:stop].transpose(0, 1) for each in (query, key, value))
        k, v = (each.repeat_interleave(q.shape[0] // k.shape[0], dim=0) for each in (k, v))
        distance = torch.arange(stop - start)[:, None] - torch.arange(stop - start)
        left, right = (bound if bound >= 0 else stop for bound in window)
        scores = (q @ k.transpose(1, 2) * scale).masked_fill((distance > left) | (-distance > right), float("-inf"))
        output[start:stop] = (scores.softmax(dim=-1) @ v).transpose(0, 1)
    return output


def of_2_13(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    return_aux: object = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
) -> Tensor:
    """Wants grouped heads announced."""
    assert enable_gqa == (query.shape[1] != key.shape[1])
    assert max_q == max_k == int((cu_seq_q[1:] - cu_seq_q[:-1]).max())
    assert scale is not None
    return stand_in(query, key, value, cu_seq_q, window_size, scale)


def of_2_11(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    return_aux: object = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """Takes grouped heads as they are."""
    assert scale is not None
    return stand_in(query, key, value, cu_seq_q, window_size, scale)


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("terms", [Terms(scale=0.5, causal=c, window=w) for c in (True, False) for w in (None, 1, 4)])
@pytest.mark.parametrize("signature", [of_2_13, of_2_11])
def test_arguments_mean_what_our_terms_mean(
    signature: Callable[..., Any], terms: Terms, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Causality, exclusive windows, grouped heads, both signatures."""
    monkeypatch.setattr(varlen, "varlen_attn", signature)
    batch = RaggedBatch.pack([np.zeros(length, dtype=np.int32) for length in (1, 9, 5, 30)], CPU)
    torch.manual_seed(0)
    query = torch.randn(batch.total, 4, 8).transpose(0, 1)
    key, value = (torch.randn(batch.total, 4 // groups, 8).transpose(0, 1) for _ in range(2))
    expected = OneByOne()(query, key, value, batch, terms)
    assert torch.allclose(Varlen()(query, key, value, batch, terms), expected, atol=1e-6)


def test_the_installed_signature_is_one_of_these() -> None:
    """So that an upgrade of PyTorch shows here first."""
    import inspect

    names = set(inspect.signature(varlen.varlen_attn).parameters)
    assert set(inspect.signature(of_2_11).parameters) <= names

"""What we ask of PyTorch's varlen attention, held against the twin with a stand-in that runs on a CPU.

The kernel itself is proven by tests/gpu on a device only.
"""

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor
from torch.nn.attention import varlen

from gpu_worker.kernels.attention.interface import AttentionTerms
from gpu_worker.kernels.attention.varlen import Varlen
from support import launched_cases
from support.varlen_twin import attended


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
    num_splits: int | None = None,
) -> Tensor:
    """Wants grouped heads announced, and splits keys unless it is told not to."""
    assert num_splits == 1
    assert enable_gqa == (query.shape[1] != key.shape[1])
    assert max_q == max_k == int((cu_seq_q[1:] - cu_seq_q[:-1]).max())
    assert scale is not None
    return attended(query, key, value, cu_seq_q, cu_seq_k, window_size, scale, seqused_k)


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
    assert max_k == int((cu_seq_k[1:] - cu_seq_k[:-1]).max())
    return attended(query, key, value, cu_seq_q, cu_seq_k, window_size, scale)


@launched_cases.batches
@launched_cases.grouped
@launched_cases.terms
@pytest.mark.parametrize("signature", [of_2_13, of_2_11])
def test_arguments_mean_what_our_terms_mean(
    signature: Callable[..., Any],
    terms: AttentionTerms,
    groups: int,
    lengths: tuple[int, ...],
    tails: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Causality, exclusive windows, grouped heads, keys that do not count, both signatures."""
    monkeypatch.setattr(varlen, "varlen_attn", signature)
    launched_cases.equals_the_twin(Varlen(), terms, groups, lengths, tails)


def test_the_installed_signature_is_one_of_these() -> None:
    """So that an upgrade of PyTorch shows here first."""
    import inspect

    names = set(inspect.signature(varlen.varlen_attn).parameters)
    assert set(inspect.signature(of_2_11).parameters) <= names

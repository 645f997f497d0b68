"""What we ask of PyTorch's varlen attention, held against the twin with a stand-in that runs on a CPU.

The kernel itself is proven by tests/gpu on a device only.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen

from gpu_worker.attention.interface import OneByOne, Terms
from gpu_worker.attention.varlen import Varlen
from gpu_worker.ragged.batch import RaggedBatch

CPU = torch.device("cpu")


def stand_in(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    ends: Tensor,
    key_ends: Tensor,
    window: tuple[int, int],
    scale: float,
    used: Tensor | None = None,
) -> Tensor:
    """As its documentation says: [T, H, D]; a window of (left, right) tokens, -1 for no bound; the last query and the
    last key that counts are lined up."""
    output = torch.empty_like(query)
    for row, (start, stop) in enumerate(pairwise(ends.tolist())):
        first, last = key_ends[row : row + 2].tolist()
        last = last if used is None else first + int(used[row])
        q, k, v = (each.transpose(0, 1) for each in (query[start:stop], key[first:last], value[first:last]))
        k, v = (each.repeat_interleave(q.shape[0] // k.shape[0], dim=0) for each in (k, v))
        shift = (last - first) - (stop - start)
        distance = torch.arange(stop - start)[:, None] + shift - torch.arange(last - first)
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
    num_splits: int | None = None,
) -> Tensor:
    """Wants grouped heads announced, and splits keys unless it is told not to."""
    assert num_splits == 1
    assert enable_gqa == (query.shape[1] != key.shape[1])
    assert max_q == max_k == int((cu_seq_q[1:] - cu_seq_q[:-1]).max())
    assert scale is not None
    return stand_in(query, key, value, cu_seq_q, cu_seq_k, window_size, scale, seqused_k)


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
    return stand_in(query, key, value, cu_seq_q, cu_seq_k, window_size, scale)


FEW, MANY = (1, 9, 5, 30), (*([1, 9, 5] * 100), 300)
"""The second ones are attended to in two launches."""


@pytest.mark.parametrize(
    ("lengths", "tails"),
    [(FEW, ()), (FEW, (0, 3, 0, 29)), (MANY, ()), (MANY, (*([0, 3, 2] * 100), 20))],
    ids=["whole", "tails", "two launches", "two launches with tails"],
)
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("terms", [Terms(scale=0.5, causal=c, window=w) for c in (True, False) for w in (None, 1, 4)])
@pytest.mark.parametrize("signature", [of_2_13, of_2_11])
def test_arguments_mean_what_our_terms_mean(
    signature: Callable[..., Any],
    terms: Terms,
    groups: int,
    lengths: tuple[int, ...],
    tails: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Causality, exclusive windows, grouped heads, keys that do not count, both signatures."""
    monkeypatch.setattr(varlen, "varlen_attn", signature)
    batch = RaggedBatch.pack([np.zeros(length, dtype=np.int32) for length in lengths], CPU, tails=tails)
    assert len(batch.spans) == (2 if lengths is MANY else 1)
    torch.manual_seed(0)
    query = torch.randn(batch.total, 4, 8).transpose(0, 1)
    key, value = (torch.randn(batch.total, 4 // groups, 8).transpose(0, 1) for _ in range(2))
    expected = OneByOne()(query, key, value, batch, terms)
    ours = Varlen()(query, key, value, batch, terms)
    defined = torch.isfinite(expected).all(dim=2)
    assert torch.allclose(ours[defined], expected[defined], atol=1e-6)
    assert defined.all() or (tails and terms.window)


def test_the_installed_signature_is_one_of_these() -> None:
    """So that an upgrade of PyTorch shows here first."""
    import inspect

    names = set(inspect.signature(varlen.varlen_attn).parameters)
    assert set(inspect.signature(of_2_11).parameters) <= names

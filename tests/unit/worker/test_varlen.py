"""What we ask of PyTorch's varlen attention, held against the twin with a stand-in that runs on a CPU.

The kernel itself is proven by tests/gpu on a device only.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import varlen

from gpu_worker.kernels.attention.interface import AttentionTerms, OneByOne
from gpu_worker.kernels.attention.varlen import Varlen
from gpu_worker.ragged.batch import LEAST_SAVED, TILE, RaggedBatch, split_launches
from support.varlen_twin import of_2_11, of_2_13

CPU = torch.device("cpu")
FEW, MANY = (1, 9, 5, 30), (*([1, 9, 5] * 33), 900)
"""The second ones are attended to in two launches."""


@pytest.mark.parametrize(
    ("lengths", "tails"),
    [(FEW, ()), (FEW, (0, 3, 0, 29)), (MANY, ()), (MANY, (*([0, 3, 2] * 33), 20))],
    ids=["whole", "tails", "two launches", "two launches with tails"],
)
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize(
    "terms", [AttentionTerms(scale=0.5, causal=c, window=w) for c in (True, False) for w in (None, 1, 4)]
)
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
    batch = RaggedBatch.pack([np.zeros(length, dtype=np.int32) for length in lengths], CPU, tails=tails)
    assert len(batch.launches) == (2 if lengths is MANY else 1)
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


def tiles(lengths: list[int]) -> int:
    """Programs of one launch, for each head."""
    return len(lengths) * -(-max(lengths, default=0) // TILE)


@given(st.lists(st.integers(1, 3000), max_size=60), st.integers(0, 1500), st.booleans())
def test_launches_take_every_sequence_once_and_pay(some: list[int], short: int, ordered: bool) -> None:
    """In order; a second one leaves fewer tiles by half, and none would leave fewer."""
    lengths = [5] * short + some
    if ordered:
        lengths.sort()
    spans = split_launches(np.array(lengths, dtype=np.int64))
    assert [length for start, stop in spans for length in lengths[start:stop]] == lengths
    best = min((tiles(lengths[:cut]) + tiles(lengths[cut:]) for cut in range(1, len(lengths))), default=tiles(lengths))
    saved = tiles(lengths) - best
    if saved >= LEAST_SAVED and 2 * best <= tiles(lengths):
        assert sum(tiles(lengths[start:stop]) for start, stop in spans) == best
    else:
        assert spans == [(0, len(lengths))]

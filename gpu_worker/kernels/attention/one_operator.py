"""Attention as one operator, around which layers are compiled: a compiler looks at nothing that it does.

So what it keeps may grow, steps may take it any number of launches, and one compilation serves all of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from gpu_worker.kernels.attention.interface import AttentionTerms, LayerAttention
from gpu_worker.ragged.batch import RaggedBatch

_UNDER_WAY = ContextVar[tuple[LayerAttention, RaggedBatch]]("attention under way")


class OneOperator:
    """Attends through the attention that is under way in this thread. Terms with a bias are refused there."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: AttentionTerms) -> Tensor:
        """See `LayerAttention`."""
        assert terms.bias is None  # no operator takes a function
        numbers = terms.scale, terms.causal, terms.window, terms.softcap
        output: Tensor = torch.ops.selvage.attention_under_way(query, key, value, *numbers)
        return output


@contextmanager
def one_operator(attention: LayerAttention, batch: RaggedBatch) -> Iterator[OneOperator]:
    """Makes an attention one operator, for a run of the layers over this batch in this thread."""
    before = _UNDER_WAY.set((attention, batch))
    try:
        yield OneOperator()
    finally:
        _UNDER_WAY.reset(before)


# It declares no effects, though the attention may keep keys and values: a layer has one call, whose result it uses, so
# no compiler leaves it out or moves it before another; and of its inputs only copies are read after the layer.
@torch.library.custom_op("selvage::attention_under_way", mutates_args=())
def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """Attends as is under way: query [H, T, D], key and value [Hkv, T, D] -> [T, H, D]."""
    attention, batch = _UNDER_WAY.get()
    terms = AttentionTerms(scale=scale, causal=causal, window=window, softcap=softcap)
    return attention(query, key, value, batch, terms)


@_attend.register_fake
def _shape(query: Tensor, key: Tensor, value: Tensor, *terms: object) -> Tensor:
    """What comes out, for compilers: [T, H, D]."""
    return query.new_empty(query.shape[1], query.shape[0], value.shape[2])

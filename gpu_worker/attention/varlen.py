"""Attention through PyTorch's FlashAttention over packed sequences."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from gpu_worker.attention.equal_runs import EqualRuns, Ways
from gpu_worker.attention.interface import Terms
from gpu_worker.ragged.batch import RaggedBatch


class Varlen:
    """PyTorch's FlashAttention over packed sequences: CUDA, half precision, no softcap, no bias.

    Its signature grew: grouped heads must be announced from 2.13 on and are accepted as they are before; keys that do
    not count are told it from then on (`seqused_k`) and taken out before. Either way it lines up the last query with
    the last key, so causal layers and windows with such keys run as equal runs, and so do chunks.
    """

    name = "varlen"

    def __init__(self) -> None:
        from torch.nn.attention.varlen import varlen_attn

        self._attend: Callable[..., Any] = varlen_attn
        self._parameters = inspect.signature(varlen_attn).parameters
        self._lined_up = EqualRuns(Ways())

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: Terms) -> Tensor:
        assert terms.softcap is None
        assert terms.bias is None
        if terms.chunk is not None or (batch.keys is not None and (terms.causal or terms.window is not None)):
            return self._lined_up(query, key, value, batch, terms)
        reach = -1 if terms.window is None else terms.window - 1
        options: dict[str, Any] = {"scale": terms.scale}
        if "window_size" in self._parameters:
            options["window_size"] = (reach, 0 if terms.causal else reach)
        elif terms.window is None:
            options["is_causal"] = terms.causal
        else:
            raise NotImplementedError("this PyTorch's varlen attention knows no sliding window")
        if "enable_gqa" in self._parameters:
            options["enable_gqa"] = query.shape[0] != key.shape[0]
        q, k, v = (each.transpose(0, 1) for each in (query, key, value))
        ends, longest = batch.cu_seqlens, batch.longest
        key_ends, longest_key = ends, longest
        if batch.keys is not None and "seqused_k" in self._parameters:
            options["seqused_k"] = batch.keys.counts
        elif batch.keys is not None:
            k, v = (each.index_select(0, batch.keys.rows) for each in (k, v))
            key_ends, longest_key = batch.keys.cu_seqlens, int(batch.keys.lengths.max())
        output: Tensor = self._attend(q, k, v, ends, key_ends, longest, longest_key, **options)
        return output

"""Attention through PyTorch's FlashAttention over packed sequences."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from gpu_worker.kernels.attention.interface import AttentionTerms
from gpu_worker.kernels.attention.launched import LaunchedAttention, reach
from gpu_worker.ragged.batch import Span


class Varlen(LaunchedAttention):
    """PyTorch's FlashAttention over packed sequences.

    Its signature grew: grouped heads must be announced from 2.13 on and are accepted as they are before; keys that do
    not count are told it from then on (`seqused_k`) and taken out before.

    Splitting keys over programs is switched off where it can be: it would depend on the longest text of the batch.
    """

    name = "varlen"

    def __init__(self) -> None:
        from torch.nn.attention.varlen import varlen_attn

        super().__init__()
        self._attend: Callable[..., Any] = varlen_attn
        self._known = frozenset(inspect.signature(varlen_attn).parameters)

    def launch(
        self, q: Tensor, k: Tensor, v: Tensor, all_k: Tensor, all_v: Tensor, span: Span, terms: AttentionTerms
    ) -> Tensor:
        options = self._options(terms, grouped=q.shape[1] != k.shape[1])
        ends, longest = span.cu_seqlens, span.longest
        key_ends, longest_key = ends, longest
        if span.keys is not None and "seqused_k" in self._known:
            options["seqused_k"] = span.keys.counts
        elif span.keys is not None:
            k, v = (each.index_select(0, span.keys.rows) for each in (all_k, all_v))
            key_ends, longest_key = span.keys.cu_seqlens, span.keys.longest
        output: Tensor = self._attend(q, k, v, ends, key_ends, longest, longest_key, **options)
        return output

    def _options(self, terms: AttentionTerms, *, grouped: bool) -> dict[str, Any]:
        options: dict[str, Any] = {"scale": terms.scale}
        if "window_size" in self._known:
            options["window_size"] = reach(terms)
        elif terms.window is None:
            options["is_causal"] = terms.causal
        else:
            raise NotImplementedError("this PyTorch's varlen attention knows no sliding window")
        if "enable_gqa" in self._known:
            options["enable_gqa"] = grouped
        if "num_splits" in self._known:
            options["num_splits"] = 1
        return options

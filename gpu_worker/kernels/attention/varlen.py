"""Attention through PyTorch's FlashAttention over packed sequences."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from gpu_worker.kernels.attention.interface import AttentionTerms
from gpu_worker.kernels.attention.launched import SpanAttention, ends, reach
from gpu_worker.ragged.followers import Followers
from gpu_worker.ragged.spans import Span


class Varlen(SpanAttention):
    """PyTorch's FlashAttention over packed sequences.

    Its signature grew with PyTorch 2.13. Since then grouped heads must be announced, and it takes the number of keys
    that count (`seqused_k`); before, we take out the keys that do not.

    Splitting keys over programs is switched off where the option exists: the split would depend on the longest text of
    the batch, and with it the rounding.
    """

    name = "varlen"

    def __init__(self) -> None:
        from torch.nn.attention.varlen import varlen_attn

        super().__init__()
        self._attend: Callable[..., Any] = varlen_attn
        self._arguments = frozenset(inspect.signature(varlen_attn).parameters)

    def attend_span(
        self, q: Tensor, k: Tensor, v: Tensor, all_k: Tensor, all_v: Tensor, span: Span, terms: AttentionTerms
    ) -> Tensor:
        options = self._options(terms, grouped=q.shape[1] != k.shape[1])
        query_ends, longest = span.cu_seqlens, span.longest
        key_ends, longest_key = query_ends, longest
        if span.keys is not None and "seqused_k" in self._arguments:
            options["seqused_k"] = span.keys.counts
        elif span.keys is not None:
            k, v = (states.index_select(0, span.keys.rows) for states in (all_k, all_v))
            key_ends, longest_key = span.keys.cu_seqlens, span.keys.longest
        output: Tensor = self._attend(q, k, v, query_ends, key_ends, longest, longest_key, **options)
        return output

    def attend_keys(self, q: Tensor, k: Tensor, v: Tensor, terms: AttentionTerms) -> Tensor:
        sides = (ends(len(states), q.device) for states in (q, k))
        options = self._options(terms, grouped=q.shape[1] != k.shape[1])
        output: Tensor = self._attend(q, k, v, *sides, len(q), len(k), **options)
        return output

    def attend_texts(self, q: Tensor, k: Tensor, v: Tensor, followers: Followers, terms: AttentionTerms) -> Tensor:
        options = self._options(terms, grouped=q.shape[1] != k.shape[1])
        ends, longest = (followers.query_ends, followers.key_ends), (followers.longest, followers.longest_text)
        output: Tensor = self._attend(q, k, v, *ends, *longest, **options)
        return output

    def _options(self, terms: AttentionTerms, *, grouped: bool) -> dict[str, Any]:
        options: dict[str, Any] = {"scale": terms.scale}
        if "window_size" in self._arguments:
            options["window_size"] = reach(terms)
        elif terms.window is None:
            options["is_causal"] = terms.causal
        else:
            raise NotImplementedError("this PyTorch's varlen attention knows no sliding window")
        if "enable_gqa" in self._arguments:
            options["enable_gqa"] = grouped
        if "num_splits" in self._arguments:
            options["num_splits"] = 1
        return options

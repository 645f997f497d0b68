"""Attention through PyTorch's FlashAttention over packed sequences."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpu_worker.attention.equal_runs import EqualRuns, Ways
from gpu_worker.attention.interface import Terms
from gpu_worker.ragged.batch import RaggedBatch, Span


class Varlen:
    """PyTorch's FlashAttention over packed sequences: CUDA, half precision, no softcap, no bias.

    Its signature grew: grouped heads must be announced from 2.13 on and are accepted as they are before; keys that do
    not count are told it from then on (`seqused_k`) and taken out before. Either way it lines up the last query with
    the last key, so causal layers and windows with such keys run as equal runs, and so do chunks.

    Splitting keys over programs is switched off where it can be: it would depend on the longest text of the batch.
    """

    name = "varlen"

    def __init__(self) -> None:
        from torch.nn.attention.varlen import varlen_attn

        self._attend: Callable[..., Any] = varlen_attn
        self._known = frozenset(inspect.signature(varlen_attn).parameters)
        self._lined_up = EqualRuns(Ways())

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: Terms) -> Tensor:
        assert terms.softcap is None
        assert terms.bias is None
        tails = any(span.keys is not None for span in batch.spans)
        if terms.chunk is not None or (tails and (terms.causal or terms.window is not None)):
            return self._lined_up(query, key, value, batch, terms)
        options = self._options(terms, grouped=query.shape[0] != key.shape[0])
        q, k, v = (each.transpose(0, 1) for each in (query, key, value))
        if len(batch.spans) == 1:
            return self._launch(q, k, v, k, v, batch.spans[0], options)
        rows = [slice(span.start, span.stop) for span in batch.spans]
        return torch.cat(
            [
                self._launch(q[own], k[own], v[own], k, v, span, options)
                for span, own in zip(batch.spans, rows, strict=True)
            ]
        )

    def _options(self, terms: Terms, *, grouped: bool) -> dict[str, Any]:
        reach = -1 if terms.window is None else terms.window - 1
        options: dict[str, Any] = {"scale": terms.scale}
        if "window_size" in self._known:
            options["window_size"] = (reach, 0 if terms.causal else reach)
        elif terms.window is None:
            options["is_causal"] = terms.causal
        else:
            raise NotImplementedError("this PyTorch's varlen attention knows no sliding window")
        if "enable_gqa" in self._known:
            options["enable_gqa"] = grouped
        if "num_splits" in self._known:
            options["num_splits"] = 1
        return options

    def _launch(
        self, q: Tensor, k: Tensor, v: Tensor, all_k: Tensor, all_v: Tensor, span: Span, options: dict[str, Any]
    ) -> Tensor:
        """q, k, v [t, H, D] of a span's tokens; `all_k`, `all_v` [T, H, D] of the batch's -> [t, H, D]."""
        ends, longest = span.cu_seqlens, span.longest
        key_ends, longest_key = ends, longest
        if span.keys is not None and "seqused_k" in self._known:
            options = {**options, "seqused_k": span.keys.counts}
        elif span.keys is not None:
            k, v = (each.index_select(0, span.keys.rows) for each in (all_k, all_v))
            key_ends, longest_key = span.keys.cu_seqlens, span.keys.longest
        output: Tensor = self._attend(q, k, v, ends, key_ends, longest, longest_key, **options)
        return output

"""Attention through PyTorch's FlashAttention over packed sequences."""

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gpu_worker.kernels.attention.equal_runs import EqualRuns
from gpu_worker.kernels.attention.interface import AttentionTerms, PackedAttention
from gpu_worker.ragged.batch import AttentionLaunch, RaggedBatch


class Varlen(PackedAttention):
    """PyTorch's FlashAttention over packed sequences, launched once or twice for a batch, in half precision.

    It has no softcap and no bias, and lines up the last query with the last key that counts. So causal layers and
    windows run as equal runs where some keys do not count. A batch is read only by its launches, so
    layers can be compiled.

    Its signature grew with PyTorch 2.13. Since then grouped heads must be announced, and it takes the number of keys
    that count (`seqused_k`); before, we take out the keys that do not.

    Splitting keys over programs is switched off where the option exists: the split would depend on the longest text of
    the batch, and with it the rounding.
    """

    name = "varlen"
    capturable = True

    def __init__(self) -> None:
        from torch.nn.attention.varlen import varlen_attn

        self._equal_runs = EqualRuns()
        self._attend: Callable[..., Any] = varlen_attn
        self._arguments = frozenset(inspect.signature(varlen_attn).parameters)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: AttentionTerms) -> Tensor:
        assert terms.softcap is None
        assert terms.bias is None
        tails = any(launch.keys is not None for launch in batch.launches)
        if tails and (terms.causal or terms.window is not None):
            return self._equal_runs(query, key, value, batch, terms)
        q, k, v = (states.transpose(0, 1) for states in (query, key, value))
        if len(batch.launches) == 1:
            return self._attend_launch(q, k, v, k, v, batch.launches[0], terms)
        rows = [slice(launch.start, launch.stop) for launch in batch.launches]
        return torch.cat(
            [
                self._attend_launch(q[tokens], k[tokens], v[tokens], k, v, launch, terms)
                for launch, tokens in zip(batch.launches, rows, strict=True)
            ]
        )

    def attend_piece(self, query: Tensor, key: Tensor, value: Tensor, terms: AttentionTerms) -> Tensor:
        """See `PackedAttention`: the kernel lines up the last query with the last key, as pieces do."""
        assert terms.softcap is None
        assert terms.bias is None
        q, k, v = (states.transpose(0, 1) for states in (query, key, value))
        sides = (ends(len(states), q.device) for states in (q, k))
        options = self._options(terms, grouped=q.shape[1] != k.shape[1])
        output: Tensor = self._attend(q, k, v, *sides, len(q), len(k), **options)
        return output

    def _attend_launch(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        all_k: Tensor,
        all_v: Tensor,
        launch: AttentionLaunch,
        terms: AttentionTerms,
    ) -> Tensor:
        options = self._options(terms, grouped=q.shape[1] != k.shape[1])
        query_ends, longest = launch.cu_seqlens, launch.longest
        key_ends, longest_key = query_ends, longest
        if launch.keys is not None and "seqused_k" in self._arguments:
            options["seqused_k"] = launch.keys.counts
        elif launch.keys is not None:
            k, v = (states.index_select(0, launch.keys.rows) for states in (all_k, all_v))
            key_ends, longest_key = launch.keys.cu_seqlens, launch.keys.longest
        output: Tensor = self._attend(q, k, v, query_ends, key_ends, longest, longest_key, **options)
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


@lru_cache(maxsize=64)  # every layer of a run asks for the same
def ends(count: int, device: torch.device) -> Tensor:
    """Where the only sequence of a launch begins and ends: [0, count] int32, made on the device without a wait."""
    return torch.arange(2, dtype=torch.int32, device=device) * count


def reach(terms: AttentionTerms) -> tuple[int, int]:
    """Computes the numbers of tokens that a token sees to its left and right, in FlashAttention's form; -1 for no
    bound."""
    left = -1 if terms.window is None else terms.window - 1
    return left, 0 if terms.causal else left

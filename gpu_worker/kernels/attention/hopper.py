"""FlashAttention 3, the kernel for Hopper: where its package `flash_attn_interface` is installed.

Shah et al., 2024, https://arxiv.org/abs/2407.08608. PyTorch can run it in place of its own kernel as well, but only
for the whole process: the model's own attention, which gates compare with, would change with it.
"""

import importlib
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from gpu_worker.kernels.attention.interface import AttentionTerms
from gpu_worker.kernels.attention.launched import SpanAttention, ends, reach
from gpu_worker.ragged.followers import Followers
from gpu_worker.ragged.spans import Span

PACKAGE = "flash_attn_interface"
HEADS = (64, 128, 256)
"""Sizes of a head that it has kernels for; builds may lack the sizes in between."""
NEEDED = frozenset({"cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"})
NEEDED |= {"seqused_k", "softmax_scale", "causal", "window_size"}
"""Arguments that we pass; the package has all of them since August 2024."""


class Hopper(SpanAttention):
    """FlashAttention 3 over packed sequences: devices of compute capability 9, bfloat16.

    Its tiles read values behind the end of a sequence and multiply them by zero, so a number there that is not finite
    spoils the text before it (its issues 1745 and 2374). Such values are therefore replaced by zeros. In bfloat16 they
    come from hidden states that are not finite either, so keys and queries of the text they belong to still show the
    error. In float16 a value alone can be too large, and the replacement would hide it.
    """

    name = "FlashAttention 3"

    def attend_span(
        self, q: Tensor, k: Tensor, v: Tensor, all_k: Tensor, all_v: Tensor, span: Span, terms: AttentionTerms
    ) -> Tensor:
        counts = None if span.keys is None else span.keys.counts
        return _launch(q, k, v, (span.cu_seqlens, span.cu_seqlens), (span.longest, span.longest), counts, terms)

    def attend_keys(self, q: Tensor, k: Tensor, v: Tensor, terms: AttentionTerms) -> Tensor:
        bounds = ends(len(q), q.device), ends(len(k), q.device)
        return _launch(q, k, v, bounds, (len(q), len(k)), None, terms)

    def attend_texts(self, q: Tensor, k: Tensor, v: Tensor, followers: Followers, terms: AttentionTerms) -> Tensor:
        bounds, longest = (followers.query_ends, followers.key_ends), (followers.longest, followers.longest_text)
        return _launch(q, k, v, bounds, longest, None, terms)


def _launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bounds: tuple[Tensor, Tensor],
    longest: tuple[int, int],
    counts: Tensor | None,
    terms: AttentionTerms,
) -> Tensor:
    """Launches the kernel with `bounds` and `longest` of queries and of keys; `counts`: the keys that count."""
    left, right = (-1, -1) if terms.window is None else reach(terms)
    finite_v = torch.nan_to_num(v, nan=0.0, posinf=0.0, neginf=0.0)
    output: Tensor = torch.ops.selvage.hopper_attention(
        q, k, finite_v, *bounds, *longest, counts, terms.scale, terms.causal, left, right
    )
    return output


@torch.library.custom_op("selvage::hopper_attention", mutates_args=())
def hopper_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_ends: Tensor,
    key_ends: Tensor,
    most_queries: int,
    most_keys: int,
    keys: Tensor | None,
    scale: float,
    causal: bool,
    left: int,
    right: int,
) -> Tensor:
    """q [T, H, D], k and v [K, Hkv, D], their ends [S + 1] int32, `keys` [S] int32 numbers of keys that count
    -> [T, H, D].

    It is an operator of our own, so that a compiler leaves it as it is: only late versions of the package register one.
    """
    attend = getattr(importlib.import_module(PACKAGE), "flash_attn_varlen_func")  # noqa: B009 - it has no types
    options: dict[str, Any] = {"num_splits": 1} if "num_splits" in _arguments(attend) else {}
    if "seqused_q" in _arguments(attend):
        options["seqused_q"] = None  # some versions have no default for it
    result = attend(
        q,
        k,
        v,
        cu_seqlens_q=query_ends,
        cu_seqlens_k=key_ends,
        max_seqlen_q=most_queries,
        max_seqlen_k=most_keys,
        seqused_k=keys,
        softmax_scale=scale,
        causal=causal,
        window_size=(left, right),
        **options,
    )
    output: Tensor = result[0] if isinstance(result, tuple) else result  # with a log-sum-exp before July 2025
    return output


@hopper_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:
    return q.new_empty(q.shape[0], q.shape[1], v.shape[2])


@cache
def _arguments(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def refusal(dtype: torch.dtype, head: int) -> str:
    """The reason why it cannot attend on a Hopper with heads of `head` numbers; "" where it can."""
    if dtype != torch.bfloat16:
        return f"it is used in bfloat16, this is {str(dtype)[6:]}"
    if head not in HEADS:
        return f"its heads have {', '.join(map(str, HEADS))} numbers, these have {head}"
    try:
        arguments = _arguments(importlib.import_module(PACKAGE).flash_attn_varlen_func)
    except Exception as error:  # it is not installed, or was built for another PyTorch or another CUDA
        return f"{PACKAGE} cannot be imported: {str(error).splitlines()[0]}"
    lacking = sorted(NEEDED - arguments)
    return f"{PACKAGE} is too old: it has no {lacking[0]}" if lacking else ""

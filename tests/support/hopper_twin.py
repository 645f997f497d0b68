"""FlashAttention 3's package on a processor: signatures that it has had, over a slow twin of its kernel.

The twin reads values up to the end of a tile, as the kernel does, and leaves rows behind the last bound as NaN.
"""

from collections.abc import Callable
from importlib.machinery import ModuleSpec
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.kernels.attention.hopper import PACKAGE

TILE = 128


def package(attend: Callable[..., Any]) -> ModuleType:
    """To be put among the loaded modules."""
    module = ModuleType(PACKAGE)
    module.__spec__ = ModuleSpec(PACKAGE, None)  # transformers asks for it
    module.flash_attn_varlen_func = attend  # type: ignore[attr-defined]
    return module


def kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ends: Tensor,
    key_ends: Tensor,
    longest: int,
    scale: float | None,
    causal: bool,
    window: tuple[int, int],
    used: Tensor | None,
) -> Tensor:
    """As its documentation says: windows of (left, right) tokens, -1 for no bound; the last query and the last key that
    counts are lined up; causal layers see nothing to the right."""
    assert scale is not None
    assert ends.dtype == key_ends.dtype == torch.int32
    output = torch.full_like(q, float("nan"))
    left, right = (bound if bound >= 0 else len(q) + len(k) for bound in window)
    right = 0 if causal else right
    for row, (start, stop) in enumerate(pairwise(ends.tolist())):
        first, last = key_ends[row : row + 2].tolist()
        last = last if used is None else first + int(used[row])
        assert stop - start <= longest
        tiles = -(-(last - first) // TILE) * TILE  # read as a whole; behind the last row there are zeros
        keys, values = (
            F.pad(each[first : first + tiles], (0, 0, 0, 0, 0, max(0, first + tiles - len(each))))
            .transpose(0, 1)
            .float()
            for each in (k, v)
        )
        queries = q[start:stop].transpose(0, 1).float()  # scores are not rounded
        groups = queries.shape[0] // keys.shape[0]
        keys, values = (each.repeat_interleave(groups, dim=0) for each in (keys, values))
        places = torch.arange(tiles)
        distance = torch.arange(stop - start)[:, None] + (last - first) - (stop - start) - places
        unseen = (distance > left) | (-distance > right) | (places >= last - first)
        scores = (queries @ keys.transpose(1, 2) * scale).masked_fill(unseen, float("-inf"))
        output[start:stop] = (scores.softmax(dim=-1) @ values).transpose(0, 1).to(q.dtype)
    return output


def of_2026(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Tensor:
    """Since July 2025, but for the last argument: the output alone."""
    assert num_splits == 1
    assert seqused_q is None
    return kernel(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, softmax_scale, causal, window_size, seqused_k)


def of_january_2025(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    seqused_q: Tensor | None,
    seqused_k: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    sink_token_length: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
) -> tuple[Tensor, Tensor]:
    """In another order, without defaults for what counts, and with the log of the sums."""
    assert num_splits == 1
    assert seqused_q is None
    output = kernel(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, softmax_scale, causal, window_size, seqused_k)
    return output, q.new_zeros(q.shape[1], len(q))


def of_august_2024(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    deterministic: bool = False,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The first with all that is needed; it splits nothing."""
    output = kernel(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, softmax_scale, causal, window_size, seqused_k)
    return output, q.new_zeros(q.shape[1], len(q))


def of_july_2024(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Without windows: too old."""
    raise AssertionError("not to be called")

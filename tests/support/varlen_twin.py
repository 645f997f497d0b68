"""PyTorch's varlen attention on a CPU, which has no kernel for it: a slow twin under the operator's own name.

So layers are compiled here with the very operator that CUDA runs. Rows behind the last bound are left as NaN.
"""

from functools import cache
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.attention import varlen


@cache
def install() -> None:
    """Registers it, once in a process."""
    varlen._varlen_attn.register_kernel("cpu")(attend)  # type: ignore[attr-defined]


def attended(
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
    last key that counts are lined up. NaN behind the last bound."""
    output = torch.full_like(query, float("nan"))
    for row, (start, stop) in enumerate(pairwise(ends.tolist())):
        first, last = key_ends[row : row + 2].tolist()
        last = last if used is None else first + int(used[row])
        q, k, v = (each.transpose(0, 1) for each in (query[start:stop], key[first:last], value[first:last]))
        k, v = (each.repeat_interleave(q.shape[0] // k.shape[0], dim=0) for each in (k, v))
        shift = (last - first) - (stop - start)
        distance = torch.arange(stop - start)[:, None] + shift - torch.arange(last - first)
        left, right = (bound if bound >= 0 else len(query) + len(key) for bound in window)
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
    """PyTorch's operator as of 2.13: wants grouped heads announced, and splits keys unless it is told not to."""
    assert num_splits == 1
    assert enable_gqa == (query.shape[1] != key.shape[1])
    assert (cu_seq_q.dtype, cu_seq_k.dtype) == (torch.int32, torch.int32)
    assert (max_q, max_k) == tuple(int(ends.diff().max()) for ends in (cu_seq_q, cu_seq_k))
    assert scale is not None
    return attended(query, key, value, cu_seq_q, cu_seq_k, window_size, scale, seqused_k)


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
    """PyTorch's operator as of 2.11: takes grouped heads as they are."""
    assert scale is not None
    assert max_k == int((cu_seq_k[1:] - cu_seq_k[:-1]).max())
    return attended(query, key, value, cu_seq_q, cu_seq_k, window_size, scale)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: list[int] | None = None,
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The operator: what `attended` gives, and what nobody reads of the others."""
    assert scale is not None
    assert enable_gqa == (query.shape[1] != key.shape[1])
    longest, longest_key = (int(ends.diff().max()) for ends in (cu_seq_q, cu_seq_k))
    assert longest <= max_q
    assert longest_key <= max_k
    left, right = window_size or (-1, -1)
    output = attended(query, key, value, cu_seq_q, cu_seq_k, (left, right), scale, seqused_k)
    return output, query.new_zeros(query.shape[1], len(query)), torch.zeros(2, dtype=torch.uint64)

"""Softmax attention by written-out products, in blocks of scores that stay in the processor's cache.

It serves where scores have a softcap, which PyTorch's fused attention lacks.
"""

import torch
from torch import Tensor

from gpu_worker.kernels.attention.interface import AttentionTerms

BLOCK_SCORES = 1 << 20
"""Scores in a block: 4 MiB of float32, and as much again for their powers. Larger blocks fall out of the cache, smaller
ones leave cores idle. A bias is made for whole sequences."""


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Multiplies [N, H, R, A] x [N, H, A, D] -> [N, H, R, D]."""
    return torch.bmm(left.flatten(0, 1), right.flatten(0, 1)).unflatten(0, left.shape[:2])  # type: ignore[no-any-return]


def written_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: AttentionTerms,
    attended: int,
    into: Tensor,
    past: int = 0,
) -> None:
    """query [N, H, L, D], key and value [N, Hkv, K, D] -> `into` [N, H, L, D]. Only the first `attended` keys count;
    `past` of them precede the first query."""
    count, heads, length, _ = query.shape
    whole = query.device.type != "cpu"  # there is no processor's cache to fit: everything at once
    fit = count * heads * length if whole else max(1, BLOCK_SCORES // attended)
    mask = terms.mask(length, attended, query.device, past)
    # An unattended tail may lie so far behind its window that it sees nothing. There softmax would give NaN; zeros are
    # what PyTorch's fused kernel gives.
    blind = ~mask.any(dim=1, keepdim=True) if mask is not None and attended < length else None
    for sequences in _parts(count, fit // (heads * length)):
        q, k, v = query[sequences], key[sequences], value[sequences]
        bias = None
        if terms.bias is not None:
            bias = terms.bias(q, k)[..., :attended].expand(*q.shape[:3], attended)
        k, v = (_ungrouped(states[:, :, :attended], heads) for states in (k, v))
        for block in _parts(heads, fit // length):
            for rows in _parts(length, fit):
                added = None if bias is None else bias[:, block, rows]
                scores = _scores(q[:, block, rows], k[:, block], added, terms)
                if mask is not None:
                    scores.masked_fill_(~mask[rows], float("-inf"))
                means = _products(torch.softmax(scores, dim=-1), v[:, block])
                into[sequences, block, rows] = means if blind is None else means.masked_fill_(blind[rows], 0.0)


def _parts(count: int, at_once: int) -> list[slice]:
    at_once = max(1, at_once)
    return [slice(start, start + at_once) for start in range(0, count, at_once)]


def _ungrouped(states: Tensor, heads: int) -> Tensor:
    """Repeats the states of shared heads: [N, Hkv, A, D] -> [N, H, A, D]."""
    groups = heads // states.shape[1]
    return states.repeat_interleave(groups, dim=1) if groups > 1 else states


def _scores(query: Tensor, key: Tensor, bias: Tensor | None, terms: AttentionTerms) -> Tensor:
    """Scores [N, H, R, A] from query [N, H, R, D], key [N, H, A, D] and bias [N, H, R, A]."""
    q, k = query.flatten(0, 1), key.flatten(0, 1)
    products = torch.baddbmm(q.new_empty(1), q, k.transpose(1, 2), beta=0, alpha=terms.scale)
    scores = products.view(*query.shape[:3], key.shape[2])
    if bias is not None:
        scores.add_(bias)
    if terms.softcap is not None:
        for sequence in scores:  # PyTorch computes some numbers one by one, off by a bit, depending on their place
            sequence.div_(terms.softcap).tanh_().mul_(terms.softcap)
    return scores

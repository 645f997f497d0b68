"""Softmax attention by written-out products, in blocks of scores that stay in the processor's cache."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_worker.kernels.attention.interface import AttentionTerms

BLOCK_SCORES = 1 << 20
"""Scores of a block: 4 MiB of float32, and as much again for their powers. Larger blocks fall out of the cache, smaller
ones leave cores idle. A bias is made for a whole sequence."""
LEAST, MOST = 2.0**-40, 2.0**60
"""Sums of a row's powers that neither lost small ones nor can overflow with the values, in float32 and bfloat16."""


@dataclass(frozen=True, slots=True)
class Weighing:
    """Means of values by their scores: `apply` takes scores [N, H, R, A], in units of 1 / `unit`, and values
    [N, H, A, D] and gives [N, H, R, D]."""

    unit: float
    apply: Callable[[Tensor, Tensor], Tensor]


def _by_softmax(scores: Tensor, values: Tensor) -> Tensor:
    return _products(torch.softmax(scores, dim=-1), values)


def _by_powers(scores: Tensor, values: Tensor) -> Tensor:
    """Softmax is a ratio of sums, whatever the base and the largest score: powers of two, summed up, and one division
    a row in the end. That no power left the number format is seen by the sums, which are read here; rows of which one
    did go another way, and they alone."""
    powers = torch.empty_like(scores)
    for own, into in zip(scores, powers, strict=True):
        # A sequence at a time: which numbers PyTorch takes one by one, off by a bit, hangs on their place in a tensor.
        torch.exp2(own, out=into)
    sums = powers.sum(dim=-1, keepdim=True, dtype=torch.float32)
    means = _products(powers, values).div_(sums)
    least, most = torch.aminmax(sums)
    if least.item() > LEAST and most.item() < MOST:
        return means
    weights = torch.softmax(scores.float().div_(POWERS.unit), dim=-1).to(scores.dtype)  # rounds scores once, not twice
    return torch.where((sums > LEAST) & (sums < MOST), means, _products(weights, values))


def _products(left: Tensor, right: Tensor) -> Tensor:
    """[N, H, R, A] x [N, H, A, D] -> [N, H, R, D]."""
    return torch.bmm(left.flatten(0, 1), right.flatten(0, 1)).unflatten(0, left.shape[:2])  # type: ignore[no-any-return]


SOFTMAX = Weighing(1.0, _by_softmax)
POWERS = Weighing(math.log2(math.e), _by_powers)
"""For processors alone, since it reads from the device; whether it is the faster there is measured at load."""


def written_out(
    query: Tensor, key: Tensor, value: Tensor, terms: AttentionTerms, attended: int, into: Tensor, weighing: Weighing
) -> None:
    """query [N, H, L, D], key and value [N, Hkv, L, D] -> `into` [N, H, L, D]; the first `attended` keys count."""
    count, heads, length, _ = query.shape
    whole = query.device.type != "cpu"  # no processor's cache to stay in: all at once
    fit = count * heads * length if whole else max(1, BLOCK_SCORES // attended)
    mask = terms.mask(length, attended, query.device)
    # Far behind a window an unattended tail sees nothing; PyTorch's fused kernel gives zeros there, which stay numbers.
    blind = ~mask.any(dim=1, keepdim=True) if mask is not None and attended < length else None
    for sequences in _parts(count, fit // (heads * length)):
        q, k, v = query[sequences], key[sequences], value[sequences]
        bias = None
        if terms.bias is not None:
            bias = terms.bias(q, k)[..., :attended].expand(*q.shape[:3], attended)
        k, v = (_ungrouped(each[:, :, :attended], heads) for each in (k, v))
        for own in _parts(heads, fit // length):
            for rows in _parts(length, fit):
                added = None if bias is None else bias[:, own, rows]
                scores = _scores(q[:, own, rows], k[:, own], added, terms, weighing)
                if mask is not None:
                    scores.masked_fill_(~mask[rows], float("-inf"))
                means = weighing.apply(scores, v[:, own])
                into[sequences, own, rows] = means if blind is None else means.masked_fill_(blind[rows], 0.0)


def _parts(count: int, at_once: int) -> list[slice]:
    at_once = max(1, at_once)
    return [slice(start, start + at_once) for start in range(0, count, at_once)]


def _ungrouped(states: Tensor, heads: int) -> Tensor:
    """[N, Hkv, A, D] -> [N, H, A, D]."""
    groups = heads // states.shape[1]
    return states.repeat_interleave(groups, dim=1) if groups > 1 else states


def _scores(query: Tensor, key: Tensor, bias: Tensor | None, terms: AttentionTerms, weighing: Weighing) -> Tensor:
    """query [N, H, R, D], key [N, H, A, D], bias [N, H, R, A] -> [N, H, R, A] in the weighing's units."""
    unit = weighing.unit if terms.softcap is None else 1.0
    q, k = query.flatten(0, 1), key.flatten(0, 1)
    products = torch.baddbmm(q.new_empty(1), q, k.transpose(1, 2), beta=0, alpha=terms.scale * unit)
    scores = products.view(*query.shape[:3], key.shape[2])
    if bias is not None:
        scores.add_(bias, alpha=unit)
    if terms.softcap is not None:
        for own in scores:  # a sequence at a time, see `_by_powers`
            own.div_(terms.softcap).tanh_().mul_(terms.softcap * weighing.unit)
    return scores


@contextmanager
def onednn_products() -> Iterator[None]:
    """Lets oneDNN multiply float32, where PyTorch would take another library: twice as fast on AMD from 64 tokens on.

    PyTorch offers that only as a leave to round factors to bfloat16, of which oneDNN makes no use on processors without
    matrix units for it; that it makes none here is for whoever calls this to have seen. The setting is the process's,
    not the thread's: one thread at a time may be here.
    """
    setting: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    usual = setting.fp32_precision
    setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = usual

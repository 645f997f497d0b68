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
"""Scores in a block: 4 MiB of float32, and as much again for their powers. Larger blocks fall out of the cache, smaller
ones leave cores idle. A bias is made for whole sequences."""
LEAST, MOST = 2.0**-40, 2.0**60
"""Bounds for the sum of a row's powers. Between them no small power was lost and no product with a value can overflow,
in float32 and bfloat16."""


@dataclass(frozen=True, slots=True)
class Weighing:
    """A method to weigh values by their scores. `apply` takes scores [N, H, R, A], in units of 1 / `unit`, and values
    [N, H, A, D], and returns means [N, H, R, D]."""

    unit: float
    apply: Callable[[Tensor, Tensor], Tensor]


def _by_softmax(scores: Tensor, values: Tensor) -> Tensor:
    return _products(torch.softmax(scores, dim=-1), values)


def _by_powers(scores: Tensor, values: Tensor) -> Tensor:
    """Weighs by powers of two, divided by their sum once a row: softmax is this ratio, whatever the base.

    The sums show whether a power left the number format, so they are read here; only rows in which one did are
    computed again, by softmax.
    """
    powers = torch.empty_like(scores)
    for sequence, into in zip(scores, powers, strict=True):
        # A sequence at a time: PyTorch computes some numbers one by one, off by a bit, depending on their place.
        torch.exp2(sequence, out=into)
    sums = powers.sum(dim=-1, keepdim=True, dtype=torch.float32)
    means = _products(powers, values).div_(sums)
    least, most = torch.aminmax(sums)
    if least.item() > LEAST and most.item() < MOST:
        return means
    weights = torch.softmax(scores.float().div_(POWERS.unit), dim=-1).to(scores.dtype)  # rounds scores once, not twice
    return torch.where((sums > LEAST) & (sums < MOST), means, _products(weights, values))


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Multiplies [N, H, R, A] x [N, H, A, D] -> [N, H, R, D]."""
    return torch.bmm(left.flatten(0, 1), right.flatten(0, 1)).unflatten(0, left.shape[:2])  # type: ignore[no-any-return]


SOFTMAX = Weighing(1.0, _by_softmax)
POWERS = Weighing(math.log2(math.e), _by_powers)
"""Weighing for processors only, since it reads from the device; whether it is faster there is measured at load."""


def written_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: AttentionTerms,
    attended: int,
    into: Tensor,
    weighing: Weighing,
    past: int = 0,
    dropped: int = 0,
) -> None:
    """query [N, H, L, D], key and value [N, Hkv, K, D] -> `into` [N, H, L, D]. Only the first `attended` keys count.

    `past` keys precede the first query, the first `dropped` of which are not there.
    """
    count, heads, length, _ = query.shape
    whole = query.device.type != "cpu"  # there is no processor's cache to fit: everything at once
    fit = count * heads * length if whole else max(1, BLOCK_SCORES // attended)
    mask = terms.mask(length, attended, query.device, past, dropped)
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
                scores = _scores(q[:, block, rows], k[:, block], added, terms, weighing)
                if mask is not None:
                    scores.masked_fill_(~mask[rows], float("-inf"))
                means = weighing.apply(scores, v[:, block])
                into[sequences, block, rows] = means if blind is None else means.masked_fill_(blind[rows], 0.0)


def _parts(count: int, at_once: int) -> list[slice]:
    at_once = max(1, at_once)
    return [slice(start, start + at_once) for start in range(0, count, at_once)]


def _ungrouped(states: Tensor, heads: int) -> Tensor:
    """Repeats the states of shared heads: [N, Hkv, A, D] -> [N, H, A, D]."""
    groups = heads // states.shape[1]
    return states.repeat_interleave(groups, dim=1) if groups > 1 else states


def _scores(query: Tensor, key: Tensor, bias: Tensor | None, terms: AttentionTerms, weighing: Weighing) -> Tensor:
    """Scores [N, H, R, A] in the weighing's units, from query [N, H, R, D], key [N, H, A, D] and bias [N, H, R, A]."""
    unit = weighing.unit if terms.softcap is None else 1.0
    q, k = query.flatten(0, 1), key.flatten(0, 1)
    products = torch.baddbmm(q.new_empty(1), q, k.transpose(1, 2), beta=0, alpha=terms.scale * unit)
    scores = products.view(*query.shape[:3], key.shape[2])
    if bias is not None:
        scores.add_(bias, alpha=unit)
    if terms.softcap is not None:
        for sequence in scores:  # a sequence at a time, see `_by_powers`
            sequence.div_(terms.softcap).tanh_().mul_(terms.softcap * weighing.unit)
    return scores


@contextmanager
def onednn_products() -> Iterator[None]:
    """Lets oneDNN multiply float32, where PyTorch would take another library: twice as fast on AMD from 64 tokens on.

    PyTorch offers this only as permission to round factors to bfloat16. oneDNN does not round on processors without
    matrix units for bfloat16; callers must have checked that (`choice.onednn_is_exact`). The setting belongs to the
    process, not to the thread: only one thread at a time may be in here.
    """
    setting: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    usual = setting.fp32_precision
    setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = usual

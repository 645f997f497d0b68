"""Softmax attention by written-out products, in blocks of scores that stay in the processor's cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gpu_worker.models.attention import Terms

BLOCK_SCORES = 1 << 20
"""Scores in memory at once: 4 MiB of float32. Larger blocks fall out of the cache, smaller ones leave cores idle."""


def written_out(query: Tensor, key: Tensor, value: Tensor, terms: Terms, attended: int, into: Tensor) -> None:
    """query [N, H, L, D], key and value [N, Hkv, L, D] -> `into` [N, H, L, D]; the first `attended` keys count."""
    count, heads, length, _ = query.shape
    whole = query.device.type != "cpu"  # no processor's cache to stay in: all at once
    fit = count * heads * length if whole else max(1, BLOCK_SCORES // attended)
    mask = terms.mask(length, attended, query.device)
    for sequences in _parts(count, fit // (heads * length)):
        q, k, v = query[sequences], key[sequences], value[sequences]
        bias = None
        if terms.bias is not None:
            bias = terms.bias(q, k)[..., :attended].expand(*q.shape[:3], attended)
        k, v = (_ungrouped(each[:, :, :attended], heads) for each in (k, v))
        for own in _parts(heads, fit // length):
            for rows in _parts(length, fit):
                scores = _scores(q[:, own, rows], k[:, own], terms.scale)
                if bias is not None:
                    scores.add_(bias[:, own, rows])
                if terms.softcap is not None:
                    scores.div_(terms.softcap).tanh_().mul_(terms.softcap)
                if mask is not None:
                    scores.masked_fill_(~mask[rows], float("-inf"))
                weights = torch.softmax(scores, dim=-1).flatten(0, 1)
                into[sequences, own, rows] = torch.bmm(weights, v[:, own].flatten(0, 1)).unflatten(0, scores.shape[:2])


def _parts(count: int, at_once: int) -> list[slice]:
    at_once = max(1, at_once)
    return [slice(start, start + at_once) for start in range(0, count, at_once)]


def _ungrouped(states: Tensor, heads: int) -> Tensor:
    """[N, Hkv, A, D] -> [N, H, A, D]."""
    groups = heads // states.shape[1]
    return states.repeat_interleave(groups, dim=1) if groups > 1 else states


def _scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """query [N, H, L, D], key [N, H, A, D] -> [N, H, L, A]."""
    q, k = query.flatten(0, 1), key.flatten(0, 1)
    scores = torch.baddbmm(q.new_empty(1), q, k.transpose(1, 2), beta=0, alpha=scale)
    return scores.view(*query.shape[:3], key.shape[2])


@contextmanager
def onednn_products() -> Iterator[None]:
    """Lets oneDNN multiply float32, where PyTorch would take another library: twice as fast on AMD from 64 tokens on.

    PyTorch offers that only as a leave to round factors to bfloat16, of which oneDNN makes no use on processors without
    matrix units for it; that it makes none here is for whoever calls this to have seen. The setting is the process's,
    not the thread's.
    """
    setting: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    usual = setting.fp32_precision
    setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = usual

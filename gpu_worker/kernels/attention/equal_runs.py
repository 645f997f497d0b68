"""Attention by runs of equal length: the way of processors, and of devices without a kernel for ragged batches."""

from bisect import bisect_left
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor

from gpu_worker.kernels.attention.interface import AttentionTerms
from gpu_worker.kernels.attention.written_out import POWERS, SOFTMAX, onednn_products, written_out
from gpu_worker.ragged.batch import LengthRun, RaggedBatch


class RunKernel(Enum):
    """How sequences of one length attend: products written out with PyTorch's softmax; with powers of two; with powers
    of two and oneDNN's products (these two on processors only); or PyTorch's fused kernel."""

    SOFTMAX = "softmax"
    POWERS = "powers"
    ONEDNN = "oneDNN powers"
    FUSED = "fused"


@dataclass(frozen=True, slots=True)
class Ways:
    """`ways[i]` for sequences of up to `bounds[i]` tokens, the last one for all that are longer."""

    ways: tuple[RunKernel, ...] = (RunKernel.FUSED,)
    bounds: tuple[int, ...] = ()

    def of(self, length: int) -> RunKernel:
        """The way for that many tokens."""
        return self.ways[bisect_left(self.bounds, length)]

    def __str__(self) -> str:
        changes = zip(pairwise(self.ways), self.bounds, strict=True)
        told = [f"{way.value} to {bound} tokens" for (way, following), bound in changes if way is not following]
        return ", ".join([*told, self.ways[-1].value])


class EqualRuns:
    """Neighbours of equal length as one dense batch: no padding.

    Which way is the fastest depends on the processor and the number format, see `attention_choice`.
    """

    capturable = False

    def __init__(self, ways: Ways) -> None:
        self.ways = ways
        self.name = f"equal-runs ({ways})"

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: AttentionTerms) -> Tensor:
        output = query.new_empty(query.shape[1], query.shape[0], value.shape[2])
        for run in batch.runs():
            rows, way = slice(run.start, run.stop), self.ways.of(run.length)
            q, k, v = (_by_sequence(each[:, rows], run) for each in (query, key, value))
            into = _by_sequence(output[rows].transpose(0, 1), run)
            if way is RunKernel.FUSED and terms.softcap is None:
                into.copy_(fused(q, k, v, terms, run.attended))
                continue
            weighing = POWERS if way in (RunKernel.POWERS, RunKernel.ONEDNN) else SOFTMAX
            with onednn_products() if way is RunKernel.ONEDNN else nullcontext():
                written_out(q, k, v, terms, run.attended, into, weighing)
        return output


def _by_sequence(states: Tensor, run: LengthRun) -> Tensor:
    """[H, N x L, D] -> [N, H, L, D], a view."""
    heads, _, width = states.shape
    return states.view(heads, run.count, run.length, width).transpose(0, 1)


def fused(query: Tensor, key: Tensor, value: Tensor, terms: AttentionTerms, attended: int) -> Tensor:
    """Attention through PyTorch's fused kernel: query [N, H, L, D], key and value [N, Hkv, L, D] -> [N, H, L, D].

    Only the first `attended` keys count. No softcap.
    """
    length = query.shape[-2]
    unseen = terms.reaches_less_than(length)
    plain_causal = terms.bias is None and terms.causal and not unseen and attended == length
    mask = None if plain_causal else terms.mask(length, attended, query.device)
    if terms.bias is not None:
        # The kernels take masks of 2 or 4 dimensions.
        bias = terms.bias(query, key)[..., :attended].expand(*query.shape[:-1], attended)
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
    return F.scaled_dot_product_attention(
        query,
        key[..., :attended, :],
        value[..., :attended, :],
        attn_mask=mask,
        is_causal=plain_causal and length > 1,
        scale=terms.scale,
        enable_gqa=query.shape[-3] != key.shape[-3],
    )

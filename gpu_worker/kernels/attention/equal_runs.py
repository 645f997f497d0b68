"""Attention by runs of equal length, for processors and for devices without a kernel for ragged batches.

It is PyTorch's fused attention, and written out where scores have a softcap, which that lacks: in blocks of scores that
stay in the processor's cache.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.kernels.attention.interface import AttentionTerms, PackedAttention
from gpu_worker.ragged.batch import LengthRun, RaggedBatch

BLOCK_SCORES = 1 << 20
"""Scores in a block: 4 MiB of float32, and as much again for their powers. Larger blocks fall out of the cache, smaller
ones leave cores idle. A bias is made for whole sequences."""


class EqualRuns(PackedAttention):
    """Attention that runs neighbouring sequences of equal length as one dense batch, without padding."""

    name, capturable = "equal-runs", False

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: AttentionTerms) -> Tensor:
        output = query.new_empty(query.shape[1], query.shape[0], value.shape[2])
        for run in batch.runs():
            rows = slice(run.start, run.stop)
            q, k, v = (by_sequence(states[:, rows], run) for states in (query, key, value))
            _attend(q, k, v, terms, run.attended, by_sequence(output[rows].transpose(0, 1), run))
        return output

    def attend_piece(self, query: Tensor, key: Tensor, value: Tensor, terms: AttentionTerms) -> Tensor:
        output, keys = query.new_empty(query.shape[1], query.shape[0], value.shape[2]), key.shape[1]
        q, k, v = (states[None] for states in (query, key, value))
        _attend(q, k, v, terms, keys, output.transpose(0, 1)[None], keys - query.shape[1])
        return output


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: AttentionTerms,
    attended: int,
    into: Tensor,
    past: int = 0,
) -> None:
    """Attends: query [N, H, L, D], key and value [N, Hkv, K, D] -> `into` [N, H, L, D]; see `_written_out`."""
    if terms.softcap is None:
        into.copy_(fused(query, key, value, terms, attended, past))
    else:
        _written_out(query, key, value, terms, attended, into, past)


def by_sequence(states: Tensor, run: LengthRun) -> Tensor:
    """Views states [H, N x L, D] by sequence: [N, H, L, D]."""
    heads, _, width = states.shape
    return states.view(heads, run.count, run.length, width).transpose(0, 1)


def fused(query: Tensor, key: Tensor, value: Tensor, terms: AttentionTerms, attended: int, past: int = 0) -> Tensor:
    """Runs PyTorch's fused attention: query [N, H, L, D], key and value [N, Hkv, K, D] -> [N, H, L, D].

    Only the first `attended` keys count; `past` of them precede the first query. It has no softcap.
    """
    length = query.shape[-2]
    unseen = terms.reaches_less_than(past + length)
    # Its own causal mask lines up the first query with the first key.
    plain_causal = terms.bias is None and terms.causal and not unseen and attended == length and not past
    mask = None if plain_causal else terms.mask(length, attended, query.device, past)
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


def _written_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: AttentionTerms,
    attended: int,
    into: Tensor,
    past: int = 0,
) -> None:
    """Attends by written-out scores: query [N, H, L, D], key and value [N, Hkv, K, D] -> `into` [N, H, L, D]. Only the
    first `attended` keys count; `past` of them precede the first query."""
    count, heads, length, _ = query.shape
    at_once = query.device.type != "cpu"  # no block must fit into a processor's cache
    fit = count * heads * length if at_once else max(1, BLOCK_SCORES // attended)
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


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Multiplies [N, H, R, A] x [N, H, A, D] -> [N, H, R, D]."""
    return torch.bmm(left.flatten(0, 1), right.flatten(0, 1)).unflatten(0, left.shape[:2])  # type: ignore[no-any-return]

"""Attention by runs of equal length, for processors and for devices without a kernel for ragged batches."""

import torch.nn.functional as F
from torch import Tensor

from gpu_worker.kernels.attention.interface import AttentionTerms, PackedAttention
from gpu_worker.kernels.attention.written_out import written_out
from gpu_worker.ragged.batch import LengthRun, RaggedBatch


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
    """query [N, H, L, D], key and value [N, Hkv, K, D] -> `into` [N, H, L, D]; see `written_out`."""
    if terms.softcap is None:
        into.copy_(fused(query, key, value, terms, attended, past))
    else:
        written_out(query, key, value, terms, attended, into, past)


def by_sequence(states: Tensor, run: LengthRun) -> Tensor:
    """[H, N x L, D] -> [N, H, L, D], a view."""
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

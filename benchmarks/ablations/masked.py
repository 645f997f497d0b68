"""Padding, through the worker's own engine: sequences filled up to their longest, and attention that masks the rest.

So the linear layers, the number format and the products of attention are the same as without padding; what differs is
how many tokens there are.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.models.attention import EqualRuns, PackedAttention, Terms
from gpu_worker.models.trunk import Trunk
from gpu_worker.pooling import pool
from gpu_worker.ragged_batch import Ids, RaggedBatch


class MaskedAttention:
    """S sequences of one length as one dense batch, `present` [S, L] their real tokens."""

    name = "padded and masked"

    def __init__(self, present: Tensor, written_out: int) -> None:
        """Up to `written_out` tokens the products are written out, above that the fused kernel runs."""
        self._present, self._written_out = present, written_out

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: Terms) -> Tensor:
        """See `PackedAttention`. No softcap and no bias."""
        assert terms.softcap is None
        assert terms.bias is None
        count, length = self._present.shape
        q, k, v = (_by_sequence(each, count, length) for each in (query, key, value))
        groups = q.shape[1] // k.shape[1]
        if groups > 1:
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        allowed = self._present[:, None, None, :]
        own = terms.mask(length, length, query.device)
        if own is not None:
            allowed = allowed & own
        if length > self._written_out:
            states = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=terms.scale)
        else:
            scores = torch.matmul(q, k.transpose(-1, -2)).mul_(terms.scale).masked_fill_(~allowed, float("-inf"))
            states = torch.matmul(torch.softmax(scores, dim=-1), v)
        return states.transpose(1, 2).flatten(0, 1)


def _by_sequence(states: Tensor, count: int, length: int) -> Tensor:
    """[H, N x L, D] -> [N, H, L, D], a view."""
    return states.view(states.shape[0], count, length, states.shape[2]).transpose(0, 1)


def padded(trunk: Trunk, texts: Sequence[Ids]) -> Tensor:
    """[S, H] float32 unit means of the real tokens' states, by the trunk on texts padded to the longest."""
    longest = max(map(len, texts))
    filled = np.zeros((len(texts), longest), dtype=np.int32)
    for row, text in enumerate(texts):
        filled[row, : len(text)] = text
    counts = torch.tensor([len(text) for text in texts]).to(trunk.device)
    present = torch.arange(longest, device=trunk.device) < counts[:, None]
    usual = trunk.attention
    attention = MaskedAttention(present, usual.written_out if isinstance(usual, EqualRuns) else 0)
    hidden = _with(trunk, attention)(RaggedBatch.pack(list(filled), trunk.device, trunk.first_position))
    states = hidden.view(len(texts), longest, -1).float()
    return F.normalize((states * present[:, :, None]).sum(dim=1) / counts[:, None], dim=1)


def packed(trunk: Trunk, texts: Sequence[Ids]) -> Tensor:
    """The same without padding, as a step runs: shortest first, so that neighbours of one length share products."""
    order = np.argsort([len(text) for text in texts], kind="stable")
    batch = RaggedBatch.pack([texts[each] for each in order], trunk.device, trunk.first_position)
    rows = F.normalize(pool(trunk(batch), batch, ("mean",)), dim=1)
    back = torch.from_numpy(np.argsort(order)).to(trunk.device)
    return rows.index_select(0, back)


def _with(trunk: Trunk, attention: PackedAttention) -> Trunk:
    return Trunk(trunk.model, attention, trunk.first_position, trunk.token_types)

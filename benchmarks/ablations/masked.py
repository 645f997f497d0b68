"""Padding, through the worker's own engine: sequences filled up to their longest, and attention that masks the rest.

So the linear layers, the number format and the products of attention are the same as without padding; what differs is
how many tokens there are.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.attention.equal_runs import EqualRuns, Ways
from gpu_worker.attention.interface import PackedAttention, Terms
from gpu_worker.attention.written_out import BLOCK_SCORES
from gpu_worker.heads.pooling import pool
from gpu_worker.model.trunk import PackedTrunk
from gpu_worker.ragged.batch import Ids, RaggedBatch


class MaskedAttention:
    """S sequences of one length as one dense batch, of which `present` [S, L] are the real tokens.

    The rest is hidden by a bias; the ways to attend, and the blocks they work in, are the engine's own.
    """

    name = "padded and masked"

    def __init__(self, present: Tensor, ways: Ways) -> None:
        # Far below any score, but finite: a filler token of a windowed layer may have no real one to attend to.
        self._hidden = torch.zeros(present.shape, device=present.device).masked_fill(~present, -1e30)
        self._attention = EqualRuns(ways)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: Terms) -> Tensor:
        """See `PackedAttention`. No bias."""
        assert terms.bias is None
        count, length = self._hidden.shape
        states = []
        # Where the engine works in blocks, as many sequences as it would take; else all of them in one call.
        at_once = max(1, BLOCK_SCORES // (len(query) * length**2)) if query.device.type == "cpu" else count
        for part in (slice(start, start + at_once) for start in range(0, count, at_once)):
            rows = slice(part.start * length, min(part.stop, count) * length)
            hidden = self._hidden[part, None, None].to(query.dtype)
            few = RaggedBatch.pack([np.zeros(length, dtype=np.int32)] * len(hidden), query.device)
            masked = replace(terms, bias=lambda *_, hidden=hidden: hidden)
            states.append(self._attention(query[:, rows], key[:, rows], value[:, rows], few, masked))
        return torch.cat(states)


def padded(trunk: PackedTrunk, texts: Sequence[Ids]) -> Tensor:
    """[S, H] float32 unit means of the real tokens' states, by the trunk on texts padded to the longest."""
    longest = max(map(len, texts))
    filled = np.zeros((len(texts), longest), dtype=np.int32)
    for row, text in enumerate(texts):
        filled[row, : len(text)] = text
    counts = torch.tensor([len(text) for text in texts]).to(trunk.device)
    present = torch.arange(longest, device=trunk.device) < counts[:, None]
    usual = trunk.attention
    attention = MaskedAttention(present, usual.ways if isinstance(usual, EqualRuns) else Ways())
    hidden = _with(trunk, attention)(RaggedBatch.pack(list(filled), trunk.device, trunk.uncounted))
    states = hidden.view(len(texts), longest, -1).float()
    return F.normalize((states * present[:, :, None]).sum(dim=1) / counts[:, None], dim=1)


def packed(trunk: PackedTrunk, texts: Sequence[Ids]) -> Tensor:
    """The same without padding, as a step runs: shortest first, so that neighbours of one length share products."""
    order = np.argsort([len(text) for text in texts], kind="stable")
    batch = RaggedBatch.pack([texts[each] for each in order], trunk.device, trunk.uncounted)
    rows = F.normalize(pool(trunk(batch), batch, ("mean",)), dim=1)
    back = torch.from_numpy(np.argsort(order)).to(trunk.device)
    return rows.index_select(0, back)


def _with(trunk: PackedTrunk, attention: PackedAttention) -> PackedTrunk:
    return PackedTrunk(trunk.model, attention, trunk.uncounted, trunk.token_types)

"""Attention by the processor's kernels in C++: all sequences of a batch in one call, whatever their lengths."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpu_worker.kernels.attention.equal_runs import EqualRuns, by_sequence
from gpu_worker.kernels.attention.interface import AttentionTerms, PackedAttention
from gpu_worker.kernels.cpu.library import KernelLibrary
from gpu_worker.ragged.batch import LengthRun, RaggedBatch
from gpu_worker.ragged.pieces import KeysAndValues, SlotTable

HEAD_STEP = 16
"""The kernels take heads of a multiple of so many numbers."""


class NativeAttention(PackedAttention):
    """Attention by `source/attention.cpp`, which has every term that `AttentionTerms` has.

    A token's result has the same bits whatever else is in the batch. A bias is a table of tokens x tokens, so layers
    with one run equal lengths at a time. Heads of other sizes run by PyTorch's fused kernel.
    """

    capturable = False

    def __init__(self, library: KernelLibrary) -> None:
        self.name = f"native ({library.instructions})"
        self._otherwise = EqualRuns()

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: AttentionTerms) -> Tensor:
        if query.shape[-1] % HEAD_STEP or value.shape[-1] % HEAD_STEP:
            return self._otherwise(query, key, value, batch, terms)
        return self._attend(query, key, value, batch, terms)

    def attend_piece(self, query: Tensor, key: Tensor, value: Tensor, terms: AttentionTerms) -> Tensor:
        tokens, keys = query.shape[1], key.shape[1]
        if query.shape[-1] % HEAD_STEP or value.shape[-1] % HEAD_STEP:
            return self._otherwise.attend_piece(query, key, value, terms)
        layout = torch.tensor([[0, tokens, 0, keys, keys - tokens]])
        return attention(query, key, value, layout, terms, None)

    def attend_slots(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        batch: RaggedBatch,
        slots: SlotTable,
        caches: Sequence[KeysAndValues],
        terms: AttentionTerms,
    ) -> Tensor:
        """See `PackedAttention`: whole texts and pieces in one call, which finds keys where they lie."""
        if query.shape[-1] % HEAD_STEP or value.shape[-1] % HEAD_STEP:
            return self._otherwise.attend_slots(query, key, value, batch, slots, caches, terms)
        layout, segments = torch.from_numpy(batch.layout), torch.from_numpy(slots.segments)
        return attention(query, key, value, layout, terms, None, segments, [side for cache in caches for side in cache])

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: AttentionTerms) -> Tensor:
        if terms.bias is None:
            return attention(query, key, value, torch.from_numpy(batch.layout), terms, None)
        output = query.new_empty(query.shape[1], query.shape[0], value.shape[2])
        for run in batch.runs():
            _attend_run(query, key, value, run, terms, output[run.start : run.stop])
        return output


def serves(library: KernelLibrary, dtype: torch.dtype, head: int) -> bool:
    """Whether the kernels compute heads of `head` numbers in this dtype on this processor."""
    return dtype in library.formats and head % HEAD_STEP == 0


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Tensor,
    terms: AttentionTerms,
    bias: Tensor | None,
    segments: Tensor | None = None,
    caches: Sequence[Tensor] = (),
) -> Tensor:
    """Calls the kernel: query [H, T, D], key and value [Hkv, K, D] -> [T, H, D].

    `layout` [n, 5] int64, see `RaggedBatch.layout`. `bias` [1 or n, H, L, A] float32 is in place of `terms.bias`.
    `segments` [m, 4] int64, see `SlotTable`: where keys of some sequences lie, in place of what the layout says.
    `caches`: keys and values [slots, Hkv, D] of each cache in turn.
    """
    query, key, value = (states if states.stride(-1) == 1 else states.contiguous() for states in (query, key, value))
    output: Tensor = torch.ops.selvage.attention(
        query,
        key,
        value,
        layout,
        terms.scale,
        terms.causal,
        terms.window or 0,
        terms.softcap or 0.0,
        bias,
        segments,
        list(caches),
    )
    return output


def _attend_run(query: Tensor, key: Tensor, value: Tensor, run: LengthRun, terms: AttentionTerms, into: Tensor) -> None:
    """Attends in sequences of one length, with a bias: `into` [N x L, H, D]."""
    assert terms.bias is not None
    q, k, v = (states[:, run.start : run.stop] for states in (query, key, value))
    bias = terms.bias(by_sequence(q, run), by_sequence(k, run))
    bias = bias.reshape(-1, *bias.shape[-3:])[..., : run.attended].float()
    bias = bias.expand(bias.shape[0], query.shape[0], run.length, run.attended)
    if bias.stride(-1) != 1:
        bias = bias.contiguous()
    starts = torch.arange(run.count) * run.length
    numbers = torch.tensor([run.length, run.attended, 0]).expand(run.count, 3)
    layout = torch.stack([starts, numbers[:, 0], starts, numbers[:, 1], numbers[:, 2]], dim=1)
    into.copy_(attention(q, k, v, layout, terms, bias))

"""Joins layers of the processor's kernels that follow one another: all of them run in one call.

Between two layers of a short text the interpreter and threads that fell asleep take a fifth to two fifths of the time.
Layers are joined where nothing seems to happen between them: in a recorded run each took what the one before returned,
with the same keywords, and computed by the same rules. Then texts have to give the same bits as layer by layer.

Texts that begin alike run so too, and pieces of texts that are no forks; the call keeps the keys and values of these.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from gpu_worker.kernels.attention.interface import AttentionCall
from gpu_worker.kernels.attention.native import NativeAttention
from gpu_worker.kernels.attention.pieces import PieceAttention
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.tune.module_calls import ModuleCall
from gpu_worker.model.tune.native_layers import NativeLayer, Rotary, angles
from gpu_worker.ragged.batch import RaggedBatch


class JoinedLayers:
    """Layers of one kind, one after the other, in one call: the first runs all, the others hand on what it gave."""

    def __init__(self, layers: Sequence[NativeLayer]) -> None:
        self._first, self._count = layers[0], len(layers)
        self._kind, self._terms = layers[0].kind, layers[0].terms
        self._numbers = [numbers for layer in layers for numbers in layer.numbers]

    def serve(self, ragged: AttentionCall) -> bool:
        """Whether they serve this run: one whose texts attend by the kernels, whole or in pieces that are no forks."""
        attention = ragged.attention
        if isinstance(attention, PieceAttention):
            return type(attention.of_texts) is NativeAttention and attention.may_join(ragged.batch, self._terms)
        return type(attention) is NativeAttention

    def run(self, layer: NativeLayer, states: Tensor, ragged: AttentionCall, rotary: Rotary | None) -> Tensor:
        """Runs one of the layers: hidden states [1, T, H] -> those behind the last of the layers."""
        if layer is not self._first:
            return states
        cos, sin = angles(rotary) if layer.rotated else (None, None)
        terms, batch, attention = self._terms, ragged.batch, ragged.attention
        layout, places, caches = batch.layout, None, list[Tensor]()
        if isinstance(attention, PieceAttention):
            none = states.new_empty(layer.key_heads, 0, layer.head_dim)
            caches = attention.keep_layers(self._count, none, batch, terms)
            layout, places = batch.layout_for_one_call
        rows: Tensor = torch.ops.selvage.layers(
            states[0],
            self._numbers,
            *self._kind,
            cos,
            sin,
            torch.from_numpy(layout),
            terms.scale,
            terms.causal,
            terms.window or 0,
            terms.softcap or 0.0,
            places,
            caches,
        )
        return rows[None]


def joinable(encoder: PackedEncoder) -> bool:
    """Whether the encoder has layers of the processor's kernels, which attend by these."""
    native = any(isinstance(module, NativeLayer) for module in encoder.model.modules())
    return native and type(encoder.attention) is NativeAttention


def join_layers(encoder: PackedEncoder, calls: Sequence[ModuleCall], compared: RaggedBatch) -> list[list[NativeLayer]]:
    """Joins what can be joined among the encoder's layers, in place, and returns those that run in each call.

    `calls`: those of a recorded run, which show where something happens between layers. None are joined where hidden
    states of `compared` then have other bits.
    """
    chains = _chains([call for call in calls if isinstance(call.module, NativeLayer) and call.states is not None])
    with torch.inference_mode():
        expected = encoder(compared)
        for chain in chains:
            joined = JoinedLayers(chain)
            for layer in chain:
                layer.joined = joined
        if torch.equal(encoder(compared), expected):
            return chains
    for chain in chains:
        for layer in chain:
            layer.joined = None
    return []


def _chains(calls: Sequence[ModuleCall]) -> list[list[NativeLayer]]:
    """Layers that follow one another. A layer that was called more than once, or adds a bias, is in none."""
    chains: list[list[NativeLayer]] = []
    layers = [call.module for call in calls]
    before: ModuleCall | None = None
    for call in calls:
        layer = cast(NativeLayer, call.module)
        if layers.count(layer) > 1 or layer.terms.bias is not None:
            before = None
            continue
        if before is not None and _follows(before, call):
            chains[-1].append(layer)
        else:
            chains.append([layer])
        before = call
    return chains


def _follows(before: ModuleCall, after: ModuleCall) -> bool:
    """Whether nothing happened between two calls, and whether their layers are of one kind."""
    kinds = [(layer.kind, layer.terms, layer.rotated) for layer in (before.module, after.module)]
    mine, its = before.keywords, after.keywords
    return (
        after.states is before.output
        and kinds[0] == kinds[1]
        and mine.keys() == its.keys()
        and all(mine[name] is its[name] for name in mine.keys() - {"hidden_states"})
    )

"""Records one packed run of a model: what each of its layers was called with, how it attended, and what it returned."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.kernels.attention.interface import AttentionTerms, OneByOne
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.ragged.batch import RaggedBatch


@dataclass(slots=True, kw_only=True)
class LayerRun:
    """One call of a layer: hidden states [1, T, H] and keywords -> `output`, with the terms of its attention calls."""

    states: Tensor
    keywords: Mapping[str, Any]
    output: Any = None
    terms: list[AttentionTerms] = field(default_factory=list)


class _RecordingAttention(OneByOne):
    """The obvious attention, which notes the terms of every call."""

    def __init__(self) -> None:
        self.terms: list[AttentionTerms] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: AttentionTerms) -> Tensor:
        self.terms.append(terms)
        return super().__call__(query, key, value, batch, terms)


def layer_runs(encoder: PackedEncoder, batch: RaggedBatch) -> dict[nn.Module, LayerRun]:
    """Runs the model of `encoder` on a batch and returns the last run of each layer of its lists of layers.

    A layer that runs several times with other terms has none.
    """
    attention, runs = _RecordingAttention(), dict[nn.Module, LayerRun]()
    terms = dict[nn.Module, list[AttentionTerms]]()

    def begin(layer: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        states = arguments[0] if arguments else keywords.get("hidden_states")
        if isinstance(states, Tensor):
            attention.terms = []
            runs[layer] = LayerRun(states=states, keywords=keywords)

    def end(layer: nn.Module, _: tuple[Any, ...], output: Any) -> None:
        if layer in runs:
            runs[layer].output, runs[layer].terms = output, attention.terms
            if terms.setdefault(layer, attention.terms) != attention.terms:  # it serves in places that differ
                runs[layer].terms = []

    layers = {
        layer for parent in encoder.model.modules() if isinstance(parent, nn.ModuleList) for layer in parent.children()
    }
    hooks = [layer.register_forward_pre_hook(begin, with_kwargs=True) for layer in layers]
    hooks += [layer.register_forward_hook(end) for layer in layers]
    try:
        with torch.inference_mode():
            PackedEncoder(encoder.model, attention, encoder.uncounted, encoder.token_types, encoder.width)(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return runs

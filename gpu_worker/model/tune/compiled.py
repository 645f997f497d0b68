"""Layers compiled by torch.compile, which fuses elementwise operators: what graphs are captured of.

Layers are compiled, not the whole model: they are alike, so one compilation serves all of them, and little is computed
between them. Lengths are symbols, so it serves batches of all sizes.
"""

from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.ragged.batch import RaggedBatch
from shared.errors import ModelRefused

INDUCTOR = "inductor"
"""The default backend of torch.compile."""
CONFIG = {"recompile_limit": 16, "specialize_float": True}
"""Settings of the compiler. A model has up to three kinds of layers, each of which may be compiled again where two
lengths of a batch happen to be equal. Floats, which are scales and epsilons here, are constants of what is compiled."""


class CompiledLayers:
    """Runs the batches of a packed encoder with its layers compiled. The encoder itself still runs them as they are
    written."""

    def __init__(self, packed: PackedEncoder, backend: Any = INDUCTOR) -> None:
        """Compiles nothing yet. `backend` is torch.compile's. Raises ModelRefused where it finds no list of layers."""
        self._packed = packed
        # There are few kernels; with more threads, the compiler starts processes that live on after it is done.
        options: dict[str, Any] = {"options": {"compile_threads": 1}} if backend == INDUCTOR else {}
        self._forwards = [
            (layer, torch.compile(layer.forward, backend=backend, dynamic=True, fullgraph=True, **options))
            for layer in repeated_layers(packed.model)
        ]

    def __call__(self, batch: RaggedBatch) -> Tensor:
        """Last hidden states [T, H], see `Encoder`. Compiles what the batch needs; raises what the compiler raises."""
        for layer, forward in self._forwards:
            layer.forward = forward
        try:
            with torch._dynamo.config.patch(CONFIG):
                return self._packed(batch)
        finally:
            for layer, _ in self._forwards:
                del layer.forward


def repeated_layers(model: Any) -> list[nn.Module]:
    """Layers of an encoder: the only list with as many modules as its config says it has layers.

    Raises ModelRefused where there is no such list, or more than one.
    """
    count = int(model.config.get_text_config().num_hidden_layers)
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == count]
    if len(lists) != 1:
        raise ModelRefused(f"{type(model).__name__} has {len(lists)} lists of {count} layers, not one")
    return list(lists[0])

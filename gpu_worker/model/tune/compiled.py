"""Layers compiled by torch.compile, which fuses elementwise operators: one graph for every kind of layer.

Layers are compiled, not the whole model: they are alike, so the same graph serves them, and little is computed between
them. Sizes are symbols, so a graph serves batches of all sizes. A batch that would need another compilation while
requests wait, such as one of a single token, runs uncompiled.
"""

import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.kernels.attention.one_operator import one_operator
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.encoder.packed import PackedEncoder, attention_of
from gpu_worker.ragged.batch import RaggedBatch
from shared.errors import ModelRefused

INDUCTOR = "inductor"
"""The default backend of torch.compile."""
CONFIG = {"recompile_limit": 64, "specialize_float": True}
"""Settings of the compiler. Kinds of layers times kinds of batches may be more than PyTorch's limit of 8 graphs.
Floats, which are scales and epsilons here, are constants of a graph."""


class CompiledEncoder(Encoder):
    """Runs the layers of a packed encoder compiled; the packed encoder itself still runs them uncompiled."""

    def __init__(self, packed: PackedEncoder, backend: Any = INDUCTOR) -> None:
        """Compiles nothing yet. `backend` is torch.compile's. Raises ModelRefused where it finds no list of layers."""
        super().__init__(packed.model, uncounted=packed.uncounted, token_types=packed.token_types, width=packed.width)
        self._packed = packed
        # There are few kernels; with more threads, the compiler starts processes that live on after it is done.
        options: dict[str, Any] = {"options": {"compile_threads": 1}} if backend == INDUCTOR else {}
        self._forwards = [
            (layer, torch.compile(layer.forward, backend=backend, dynamic=True, fullgraph=True, **options))
            for layer in repeated_layers(packed.model)
        ]
        self.takes_pieces = True
        """Whether batches with pieces may run compiled."""
        self.seconds = 0.0
        """Time that compiling has taken, in seconds."""

    @property
    def description(self) -> str:  # type: ignore[override]
        return f"{self._packed.description}, compiled layers"

    @property
    def as_written(self) -> Encoder:
        return self._packed

    def compile(self, batches: Iterable[RaggedBatch]) -> None:
        """Compiles the graphs that these batches need. Raises what the compiler raises."""
        start = time.monotonic()
        for batch in batches:
            self.run_compiling(batch)
        self.seconds += time.monotonic() - start

    def prepare(self, batch: RaggedBatch) -> None:
        """Compiles what a batch needs; see `compile`."""
        self.compile([batch])

    def run_compiling(self, batch: RaggedBatch) -> Tensor:
        """Last hidden states [T, H], see `Encoder`. Compiles what the batch needs, so nothing runs uncompiled."""
        with torch.inference_mode(), torch._dynamo.config.patch(CONFIG):
            return self._run(batch)

    def __call__(self, batch: RaggedBatch) -> Tensor:
        """See `Encoder`. Compiles nothing: layers that would need it run uncompiled."""
        with torch.compiler.set_stance("eager_on_recompile"):
            return self._run(batch)

    def _run(self, batch: RaggedBatch) -> Tensor:
        """Runs the packed encoder with the compiled layers in place."""
        if batch.has_parts and not self.takes_pieces:
            return self._packed(batch)
        for layer, forward in self._forwards:
            layer.forward = forward
        try:
            if not batch.has_parts:
                return self._packed(batch)
            with one_operator(attention_of(batch, self._packed.attention), batch) as attention:
                return self._packed.run_by(attention, batch)
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

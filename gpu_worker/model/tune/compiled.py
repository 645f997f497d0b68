"""Layers compiled by torch.compile: what is elementwise is fused, one graph for each kind of layer and all batches.

A layer is compiled and not the whole model: layers are alike, so one is enough, and what stands between them is little.
Sizes are symbols. What would be compiled anew while requests wait (a batch of a single token) runs as it is written.
"""

import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.ragged.batch import RaggedBatch
from shared.errors import ModelRefused

INDUCTOR = "inductor"
CONFIG = {"recompile_limit": 64, "specialize_float": True}
"""Of the compiler: kinds of layers times kinds of batches, of which some models have more than PyTorch's 8; scales and
epsilons are constants."""


class CompiledEncoder(Encoder):
    """A packed encoder whose layers run compiled, in this encoder alone."""

    def __init__(self, packed: PackedEncoder, backend: Any = INDUCTOR) -> None:
        """`backend` as torch.compile takes it. Compiles nothing yet. Raises ModelRefused where it finds no layers."""
        super().__init__(packed.model, uncounted=packed.uncounted, token_types=packed.token_types, width=packed.width)
        self._packed = packed
        # Pools of processes that compile side by side would outlive the few kernels that there are.
        options: dict[str, Any] = {"options": {"compile_threads": 1}} if backend == INDUCTOR else {}
        self._forwards = [
            (layer, torch.compile(layer.forward, backend=backend, dynamic=True, fullgraph=True, **options))
            for layer in repeated_layers(packed.model)
        ]
        self.seconds = 0.0
        """That compiling took."""

    @property
    def description(self) -> str:  # type: ignore[override]
        return f"{self._packed.description}, compiled layers"

    @property
    def as_written(self) -> Encoder:
        return self._packed

    def compile(self, batches: Iterable[RaggedBatch]) -> None:
        """Compiles what these batches need. Raises what the compiler raises."""
        start = time.monotonic()
        for batch in batches:
            self.run_compiling(batch)
        self.seconds += time.monotonic() - start

    def run_compiling(self, batch: RaggedBatch) -> Tensor:
        """The same as a call, but what is not compiled yet is, and nothing runs as it is written."""
        with torch.inference_mode(), torch._dynamo.config.patch(CONFIG):
            return self._run(batch)

    def __call__(self, batch: RaggedBatch) -> Tensor:
        """See `Encoder`. What would have to be compiled first runs as it is written."""
        with torch.compiler.set_stance("eager_on_recompile"):
            return self._run(batch)

    def _run(self, batch: RaggedBatch) -> Tensor:
        for layer, forward in self._forwards:
            layer.forward = forward
        try:
            return self._packed(batch)
        finally:
            for layer, _ in self._forwards:
                del layer.forward


def repeated_layers(model: Any) -> list[nn.Module]:
    """The layers of an encoder: its one list that has as many modules as its config says. Raises ModelRefused."""
    count = int(model.config.get_text_config().num_hidden_layers)
    lists = [each for each in model.modules() if isinstance(each, nn.ModuleList) and len(each) == count]
    if len(lists) != 1:
        raise ModelRefused(f"{type(model).__name__} has {len(lists)} lists of {count} layers, not one")
    return list(lists[0])

"""Linear layers with adapters beside each other: the rows of each text get the pair of small products of its adapter.

The base's product is made once for all rows of a step (as Punica, arXiv:2310.18547, and S-LoRA, arXiv:2311.03285, do
it), so one copy of its weights serves all adapters, and their texts share a step.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from gpu_worker.model.adapters.parts import Pair
from gpu_worker.ragged.batch import AdapterRows, RaggedBatch
from shared.errors import ModelRefused


class StepAdapters:
    """What all adapted layers of a model share: the rows of the step that is being computed, of `total` in all."""

    def __init__(self) -> None:
        self.runs: tuple[AdapterRows, ...] = ()
        self.total = 0

    def enter(self, batch: RaggedBatch) -> None:
        """Sets the rows for the runs of the layers that follow."""
        self.runs, self.total = batch.adapters, batch.total


class LowRankTerms(nn.Module):
    """What one adapter makes of the outputs of a linear layer: y -> y + offset + (x down^T) up^T, in place.

    `down` [rank, in] and `up` [out, rank], which has the scale in it; `offset` [out] where the adapter has a bias of
    its own.
    """

    def __init__(self, pair: Pair, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach()
        offset = None if pair.bias is None else pair.bias - layer.bias.detach().float().cpu()
        self.register_buffer("down", pair.down.to(weight).contiguous())
        self.register_buffer("up", (pair.scale * pair.up).to(weight).contiguous())
        self.register_buffer("offset", None if offset is None else offset.to(weight))

    down: Tensor
    up: Tensor
    offset: Tensor | None

    def apply_to(self, y: Tensor, x: Tensor) -> None:
        """Changes outputs y [N, out] of inputs x [N, in]."""
        if self.offset is not None:
            y.add_(self.offset)
        y.addmm_(F.linear(x, self.down), self.up.t())


class AdaptedLinear(nn.Module):
    """x [..., T, in] -> [..., T, out]: a linear layer, `base`, and what adapters make of their rows.

    It is no nn.Linear, so whatever looks for these finds `base` in it, and no kernel for whole layers takes it in.
    """

    def __init__(self, base: nn.Module, step: StepAdapters, name: str) -> None:
        super().__init__()
        self.base, self.step, self._name = base, step, name
        self.terms: dict[int, LowRankTerms] = {}

    def add(self, number: int, terms: LowRankTerms) -> None:
        """Adds the terms of the adapter with this number."""
        self.terms[number] = terms
        self.add_module(f"adapter_{number}", terms)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x)
        if not self.step.runs:
            return y
        if x.numel() != self.step.total * x.shape[-1]:
            raise ModelRefused(f"{self._name} reads other rows than those of a step's tokens: its adapter cannot serve")
        inputs, outputs = x.reshape(self.step.total, -1), y.view(self.step.total, -1)
        for number, start, stop in self.step.runs:
            terms = self.terms.get(number)
            if terms is not None:
                terms.apply_to(outputs[start:stop], inputs[start:stop])
        return y


def step_adapters_of(model: nn.Module) -> StepAdapters | None:
    """What the adapted layers of a model share; None where it has none."""
    return next((module.step for module in model.modules() if isinstance(module, AdaptedLinear)), None)

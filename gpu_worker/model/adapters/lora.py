"""LoRA adapters at the linear layers of a model: merged there, or computed beside the layers.

PEFT initialises what a file lacks and ignores what it has too much; both would give other rows in silence. Here a
tensor that has no place, or that is missing, is refused.

Several adapters over one base: the base's product is made once for all rows of a step (as Punica, arXiv:2310.18547, and
S-LoRA, arXiv:2311.03285, do it), so one copy of its weights serves all adapters, and their texts share a step.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from gpu_worker.ragged.batch import AdapterRows, RaggedBatch
from gpu_worker.repository.adapters import Adapter, AdapterConfig, merge_first
from shared.errors import ModelRefused

PREFIX = "base_model.model."
"""What PEFT writes before the name of every tensor."""
WRAPPER = ".base_layer"
"""Part of the name of a layer's own bias, by which PEFT wraps the layer."""
ROLES = {"lora_A.weight": "down", "lora_B.weight": "up", "lora_B.bias": "added_bias", "bias": "bias"}
"""What a tensor is to its layer, by the end of its name."""
HEADS = ("score", "classifier")
"""Names of heads, which PEFT leaves out of all linear layers."""
UNUSED = "pooler."
"""Modules that a checkpoint may have been trained without; vectors do not use them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRankUpdate:
    """The change that an adapter makes to a linear layer, in float32.

    `down` [rank, in] and `up` [out, rank]; their product is added `scale` times to the weight. `bias` [out] is the
    layer's new one; None where it keeps its own.
    """

    down: Tensor
    up: Tensor
    scale: float
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterUpdates:
    """An adapter's updates by the names of the linear layers that they change; `adapter` is where they came from."""

    adapter: Adapter
    by_layer: dict[str, LowRankUpdate]

    @property
    def description(self) -> str:
        """The kind of adapter, its ranks and the number of its modules, for people."""
        ranks = sorted({update.down.shape[0] for update in self.by_layer.values()})
        name = "rsLoRA" if self.adapter.config.stabilised else "LoRA"
        rank = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        return f"{name} of {rank} on {len(self.by_layer)} modules"


def merge(model: nn.Module, updates: AdapterUpdates) -> None:
    """Merges an adapter into a model, in place. Sums are made in float32 and rounded to the model's format at the end.

    Weights that changed are new ones: others that shared the old ones keep those.
    """
    for name, update in updates.by_layer.items():
        layer: Any = model.get_submodule(name)
        weight = layer.weight
        merged_weight = weight.float() + update.scale * (update.up.to(weight.device) @ update.down.to(weight.device))
        layer.weight = nn.Parameter(merged_weight.to(weight), requires_grad=False)
        if update.bias is not None:
            layer.bias = nn.Parameter(update.bias.to(weight), requires_grad=False)


@contextmanager
def merged(model: nn.Module, updates: AdapterUpdates) -> Iterator[None]:
    """Has a model run with an adapter merged, as long as the context lasts."""
    layers: list[Any] = [model.get_submodule(name) for name in updates.by_layer]
    before = [(layer, layer.weight, layer.bias) for layer in layers]
    merge(model, updates)
    try:
        yield
    finally:
        for layer, weight, bias in before:
            layer.weight, layer.bias = weight, bias


@contextmanager
def applied(model: nn.Module, updates: AdapterUpdates) -> Iterator[None]:
    """Has a model run with an adapter's updates as they are written in the papers, as long as the context lasts: the
    outputs of each linear layer are changed, its weights stay. For comparisons, since it is slow."""
    hooks = [
        model.get_submodule(name).register_forward_hook(_hook(update)) for name, update in updates.by_layer.items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _hook(update: LowRankUpdate) -> Callable[[Any, tuple[Tensor, ...], Tensor], Tensor]:
    def adapted(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        x = inputs[0]
        y: Tensor = output + update.scale * F.linear(F.linear(x, update.down.to(x)), update.up.to(x))
        return y if update.bias is None else y + (update.bias.to(y) - layer.bias)

    return adapted


@dataclass(slots=True)
class _LayerTensors:
    """Tensors of one layer by their roles, as they are read; `key` is the name of one of them in the file."""

    key: str
    tensors: dict[str, Tensor] = field(default_factory=dict)


def updates_of(adapter: Adapter, model: Any) -> AdapterUpdates:
    """Finds the place of every tensor in a model as transformers loaded it. Raises ModelRefused, naming the tensor."""
    return _Reading(adapter, model).updates()


class _Reading:
    """Reads one adapter for one model."""

    def __init__(self, adapter: Adapter, model: Any) -> None:
        self._adapter, self._model = adapter, model
        self._modules, self._added = dict(model.named_modules()), ""

    @property
    def _config(self) -> AdapterConfig:
        return self._adapter.config

    def _refused(self, key: str, why: str) -> ModelRefused:
        return ModelRefused(f"{self._adapter.file}: {key} {why}")

    def updates(self) -> AdapterUpdates:
        layers: dict[str, _LayerTensors] = {}
        for key, tensor in self._adapter.tensors.items():
            module, role = self._split(key)
            layers.setdefault(module, _LayerTensors(key)).tensors[role] = tensor.float()
        removed, self._added = self._prefixes({module: read.key for module, read in layers.items()})
        by_name = {self._added + module.removeprefix(removed): read for module, read in layers.items()}
        by_layer = {name: self._update(name, read) for name, read in by_name.items()}
        self._check_complete(by_layer)
        return AdapterUpdates(adapter=self._adapter, by_layer=by_layer)

    def _split(self, key: str) -> tuple[str, str]:
        """Name of the layer that a tensor belongs to, and its role there. Raises ModelRefused for any other tensor."""
        name = key.removeprefix(PREFIX)
        ending = next((ending for ending in ROLES if name.endswith(f".{ending}")), "")
        if not ending or (ending == "bias" and not self._config.trains_biases):
            raise merge_first(self._adapter.file, key)
        return name.removesuffix(f".{ending}").removesuffix(WRAPPER), ROLES[ending]

    def _prefixes(self, keys: dict[str, str]) -> tuple[str, str]:
        """What the adapter's names of modules lose, and what they gain, to be the model's: an adapter may have been
        trained on the class without its head, or with it. `keys`: the name of a tensor of each module."""
        prefix = f"{self._model.base_model_prefix}."
        if not keys:
            raise ModelRefused(f"{self._adapter.file} holds no tensors")
        for removed, added in (("", ""), ("", prefix), (prefix, "")):
            if all(added + name.removeprefix(removed) in self._modules for name in keys):
                return removed, added
        name = next(name for name in keys if name not in self._modules)
        model = type(self._model).__name__
        raise self._refused(keys[name], f"has no place: {model} has no {name}; it is for another base")

    def _own_name(self, module: str) -> str:
        """The name that the adapter has for a module of the model; its patterns are written for that."""
        return module.removeprefix(self._added)

    def _check_shape(self, key: str, tensor: Tensor, wanted: list[int]) -> None:
        if list(tensor.shape) != wanted:
            raise self._refused(key, f"has the shape {list(tensor.shape)}, its place wants {wanted}: another base?")

    def _update(self, name: str, read: _LayerTensors) -> LowRankUpdate:
        layer, config, own_name = self._modules[name], self._config, self._own_name(name)
        tensors, rank, scale = read.tensors, config.rank_of(own_name), config.scale_of(own_name)
        if not _is_linear(layer):
            raise merge_first(self._adapter.file, f"{read.key} of a {type(layer).__name__}")
        if not self._takes(name):
            raise self._refused(read.key, "is of a module that target_modules of its adapter_config.json leaves out")
        for role, key in (("down", "lora_A"), ("up", "lora_B")):
            if role not in tensors:
                raise self._refused(read.key, f"stands without its {key}")
        outputs, inputs = layer.weight.shape
        self._check_shape(f"{name}.lora_A", tensors["down"], [rank, inputs])
        self._check_shape(f"{name}.lora_B", tensors["up"], [outputs, rank])
        return LowRankUpdate(
            down=tensors["down"], up=tensors["up"], scale=scale, bias=self._bias(name, layer, scale, read)
        )

    def _bias(self, name: str, layer: nn.Linear, scale: float, read: _LayerTensors) -> Tensor | None:
        """Returns the new bias of a layer; None where it keeps its own."""
        bias, added = read.tensors.get("bias"), read.tensors.get("added_bias")
        if layer.bias is None:
            if bias is not None or added is not None:
                raise self._refused(read.key, "comes with a bias for a layer that has none")
            return None
        if self._config.trains_biases and bias is None:
            raise ModelRefused(f"{self._adapter.file} lacks {name}.bias, which its {self._config.file.name} names")
        for tensor in (bias, added):
            if tensor is not None:
                self._check_shape(f"{name}: a bias", tensor, list(layer.bias.shape))
        if added is None:
            return bias
        return (layer.bias.detach().float().cpu() if bias is None else bias) + scale * added

    def _takes(self, name: str) -> bool:
        module = self._modules[name]
        head = module is self._model.get_output_embeddings() or name in HEADS
        return self._config.takes(self._own_name(name), linear=_is_linear(module) and not head)

    def _check_complete(self, by_layer: dict[str, LowRankUpdate]) -> None:
        """Raises ModelRefused where a module that was trained has no tensors."""
        lacking = [name for name in self._modules if name not in by_layer and self._was_trained(name)]
        if lacking:
            raise ModelRefused(
                f"{self._adapter.file} lacks lora_A and lora_B of {lacking[0]} and of {len(lacking) - 1} other modules "
                f"that its {self._config.file.name} names"
            )

    def _was_trained(self, name: str) -> bool:
        """Whether a module has a matrix that the description names, and that vectors use."""
        weight = getattr(self._modules[name], "weight", None)
        unused = name.removeprefix(f"{self._model.base_model_prefix}.").startswith(UNUSED)
        return isinstance(weight, Tensor) and weight.dim() == 2 and not unused and self._takes(name)


def _is_linear(module: nn.Module) -> bool:
    """Whether a module multiplies by its weight and does nothing else."""
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward


class StepAdapters:
    """The state that all adapted layers of a model share: the rows of the present step, of `total` in all."""

    def __init__(self) -> None:
        self.runs: tuple[AdapterRows, ...] = ()
        self.total = 0

    def enter(self, batch: RaggedBatch) -> None:
        """Sets the rows for the runs of the layers that follow."""
        self.runs, self.total = batch.adapters, batch.total


class LowRankTerms(nn.Module):
    """The change that one adapter makes to the outputs of a linear layer: y -> y + offset + (x down^T) up^T, in place.

    `down` [rank, in] and `up` [out, rank], which has the scale in it; `offset` [out] where the adapter has a bias of
    its own.
    """

    def __init__(self, update: LowRankUpdate, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach()
        offset = None if update.bias is None else update.bias - layer.bias.detach().float().cpu()
        self.register_buffer("down", update.down.to(weight).contiguous())
        self.register_buffer("up", (update.scale * update.up).to(weight).contiguous())
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
    """x [..., T, in] -> [..., T, out]: a linear layer, `base`, and the changes of adapters to their rows.

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
    """Finds the state that the adapted layers of a model share; None where it has none."""
    return next((module.step for module in model.modules() if isinstance(module, AdaptedLinear)), None)

"""An adapter's pairs: each at its linear layer in a model, merged there, or computed beside the layer.

PEFT initialises what a file lacks and ignores what it has too much; both would serve other rows in silence. Here a
tensor that has no place, or that is missing, is refused.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

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
class Pair:
    """What an adapter makes of a linear layer, in float32.

    `down` [rank, in] and `up` [out, rank]; their product is added `scale` times to the weight. `bias` [out] is the
    layer's new one; None where it keeps its own.
    """

    down: Tensor
    up: Tensor
    scale: float
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterParts:
    """An adapter's `pairs` by the names of the linear layers that they change; `adapter` is where they came from."""

    adapter: Adapter
    pairs: dict[str, Pair]

    @property
    def description(self) -> str:
        """What it is, in a few words for people."""
        ranks = sorted({pair.down.shape[0] for pair in self.pairs.values()})
        name = "rsLoRA" if self.adapter.config.stabilised else "LoRA"
        rank = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        return f"{name} of {rank} on {len(self.pairs)} modules"


def merge(model: nn.Module, parts: AdapterParts) -> None:
    """Merges an adapter into a model, in place. Sums are made in float32 and rounded to the model's format at the end.

    Weights that changed are new ones: others that shared the old ones keep those.
    """
    for name, pair in parts.pairs.items():
        layer: Any = model.get_submodule(name)
        weight = layer.weight
        merged_weight = weight.float() + pair.scale * (pair.up.to(weight.device) @ pair.down.to(weight.device))
        layer.weight = nn.Parameter(merged_weight.to(weight), requires_grad=False)
        if pair.bias is not None:
            layer.bias = nn.Parameter(pair.bias.to(weight), requires_grad=False)


@contextmanager
def merged(model: nn.Module, parts: AdapterParts) -> Iterator[None]:
    """Has a model run with an adapter merged, as long as the context lasts."""
    layers: list[Any] = [model.get_submodule(name) for name in parts.pairs]
    before = [(layer, layer.weight, layer.bias) for layer in layers]
    merge(model, parts)
    try:
        yield
    finally:
        for layer, weight, bias in before:
            layer.weight, layer.bias = weight, bias


@contextmanager
def applied(model: nn.Module, parts: AdapterParts) -> Iterator[None]:
    """Has a model run with an adapter's pairs as they are written in the papers, as long as the context lasts: the
    outputs of each linear layer are changed, its weights stay. For comparisons, since it is slow."""
    hooks = [model.get_submodule(name).register_forward_hook(_hook(pair)) for name, pair in parts.pairs.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _hook(pair: Pair) -> Callable[[Any, tuple[Tensor, ...], Tensor], Tensor]:
    def adapted(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        x = inputs[0]
        y: Tensor = output + pair.scale * F.linear(F.linear(x, pair.down.to(x)), pair.up.to(x))
        return y if pair.bias is None else y + (pair.bias.to(y) - layer.bias)

    return adapted


@dataclass(slots=True)
class _LayerTensors:
    """Tensors of one layer by their roles, as they are read; `key` is the name of one of them in the file."""

    key: str
    tensors: dict[str, Tensor] = field(default_factory=dict)


def parts_of(adapter: Adapter, model: Any) -> AdapterParts:
    """Finds the place of every tensor in a model as transformers loaded it. Raises ModelRefused, naming the tensor."""
    return _Reading(adapter, model).parts()


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

    def parts(self) -> AdapterParts:
        layers: dict[str, _LayerTensors] = {}
        for key, tensor in self._adapter.tensors.items():
            module, role = self._split(key)
            layers.setdefault(module, _LayerTensors(key)).tensors[role] = tensor.float()
        removed, self._added = self._prefixes({module: read.key for module, read in layers.items()})
        by_name = {self._added + module.removeprefix(removed): read for module, read in layers.items()}
        pairs = {name: self._pair(name, read) for name, read in by_name.items()}
        self._check_complete(pairs)
        return AdapterParts(adapter=self._adapter, pairs=pairs)

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

    def _pair(self, name: str, read: _LayerTensors) -> Pair:
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
        return Pair(down=tensors["down"], up=tensors["up"], scale=scale, bias=self._bias(name, layer, scale, read))

    def _bias(self, name: str, layer: nn.Linear, scale: float, read: _LayerTensors) -> Tensor | None:
        """The new bias of a layer; None where it keeps its own."""
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

    def _check_complete(self, pairs: dict[str, Pair]) -> None:
        """Raises ModelRefused where a module that was trained has no tensors."""
        lacking = [name for name in self._modules if name not in pairs and self._was_trained(name)]
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

"""An adapter's tensors, each at its place in a model. What has no place, or is missing, is refused.

PEFT initialises what a file lacks and ignores what it has too much; both would serve other rows in silence.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from gpu_worker.repository.adapter_config import AdapterConfig
from gpu_worker.repository.adapters import Adapter
from shared.errors import ModelRefused

PREFIX = "base_model.model."
"""What PEFT writes before the name of every tensor."""
WRAPPERS = (".base_layer", ".token_adapter")
"""Parts of names by which PEFT wraps a module that it trains."""
ROLES = {
    "lora_A.weight": "down",
    "lora_B.weight": "up",
    "lora_embedding_A": "down",
    "lora_embedding_B": "up",
    "lora_B.bias": "bias",
    "lora_magnitude_vector": "magnitude",
    "lora_magnitude_vector.weight": "magnitude",
    "trainable_tokens_delta": "rows",
}
"""What a tensor is to its module, by the end of its name; all others replace a parameter."""
HEADS = ("score", "classifier")
"""Names of heads, which PEFT leaves out of all linear layers."""
UNUSED = "pooler."
"""Modules that a checkpoint may have been trained without; vectors do not use them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What an adapter adds to a linear layer or to embeddings, in float32.

    `down` [rank, in] and `up` [out, rank]; their product is added `scale` times. `bias` [out] is added as often.
    `magnitude` [out]: the lengths of the rows of the merged weight (DoRA, arXiv:2402.09353).
    """

    down: Tensor
    up: Tensor
    scale: float
    bias: Tensor | None = None
    magnitude: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterParts:
    """An adapter by the places in a model that it changes.

    `pairs` by the name of a module; `replaced` parameters by their names; `tokens`: ids and their rows by the name of
    embeddings. `adapter` is where all came from.
    """

    adapter: Adapter
    pairs: dict[str, Pair]
    replaced: dict[str, Tensor]
    tokens: dict[str, tuple[tuple[int, ...], Tensor]]

    @property
    def description(self) -> str:
        """What it is, in a few words for people."""
        config = self.adapter.config
        ranks = sorted({pair.down.shape[0] for pair in self.pairs.values()})
        name = "DoRA" if config.dora else "rsLoRA" if config.stabilised else "LoRA"
        rank = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        others = f", {len(self.replaced)} whole parameters" if self.replaced else ""
        return f"{name} of {rank} on {len(self.pairs)} modules{others}" if ranks else f"{name}{others}"


@dataclass(slots=True)
class _ModuleTensors:
    """Tensors of one module by their roles, as they are read; `key` is the name of one of them in the file."""

    key: str
    tensors: dict[str, Tensor] = field(default_factory=dict)


def parts_of(adapter: Adapter, model: Any) -> AdapterParts:
    """Finds the place of every tensor in a model as transformers loaded it. Raises ModelRefused, naming the tensor."""
    return _Reading(adapter, model).parts()


def is_linear(module: nn.Module) -> bool:
    """Whether a module multiplies by its weight and does nothing else."""
    return isinstance(module, nn.Linear | Conv1D) and type(module).forward in (nn.Linear.forward, Conv1D.forward)


class _Reading:
    """Reads one adapter for one model."""

    def __init__(self, adapter: Adapter, model: Any) -> None:
        self._adapter, self._model = adapter, model
        self._modules = dict(model.named_modules())
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self._read: dict[str, _ModuleTensors] = {}
        self._replaced: dict[str, Tensor] = {}

    @property
    def _config(self) -> AdapterConfig:
        return self._adapter.config

    def _refused(self, key: str, why: str) -> ModelRefused:
        return ModelRefused(f"{self._adapter.file}: {key} {why}")

    def parts(self) -> AdapterParts:
        rename = self._naming()
        for key, tensor in self._adapter.tensors.items():
            module, role = _split(key)
            if role:
                self._read.setdefault(rename(module), _ModuleTensors(key)).tensors[role] = tensor.float()
            else:
                self._replace(key, rename(module), tensor)
        pairs = {name: self._pair(name, read) for name, read in self._read.items() if "rows" not in read.tensors}
        self._check_complete(pairs)
        tokens = {name: self._rows(name, read) for name, read in self._read.items() if "rows" in read.tensors}
        self._check_tied({*pairs, *tokens, *(name.rpartition(".")[0] for name in self._replaced)})
        return AdapterParts(adapter=self._adapter, pairs=pairs, replaced=self._replaced, tokens=tokens)

    def _naming(self) -> Callable[[str], str]:
        """The function that turns names of the adapter's modules into the model's: an adapter may have been trained on
        the class without its head, or with it."""
        prefix = f"{self._model.base_model_prefix}."
        namings: list[Callable[[str], str]] = [
            lambda name: name,
            lambda name: f"{prefix}{name}",
            lambda name: name.removeprefix(prefix),
        ]
        names = {key: _module_of(key) for key in self._adapter.tensors}
        if not names:
            raise ModelRefused(f"{self._adapter.file} holds no tensors")
        for naming in namings:
            if all(naming(name) in self._modules for name in names.values()):
                self._shown = naming
                return naming
        key, name = next((key, name) for key, name in names.items() if name not in self._modules)
        raise self._refused(key, f"has no place: {type(self._model).__name__} has no {name}; it is for another base")

    def _own_name(self, module: str) -> str:
        """The name that the adapter has for a module of the model; its patterns are written for that."""
        prefix = f"{self._model.base_model_prefix}."
        return next(
            (name for name in (module, module.removeprefix(prefix), prefix + module) if self._shown(name) == module),
            module,
        )

    def _replace(self, key: str, name: str, tensor: Tensor) -> None:
        """Takes a tensor that replaces a whole parameter."""
        parameter = self._parameters.get(name)
        module, _, last = name.rpartition(".")
        saved = self._config.saves(self._own_name(module))
        embeddings = isinstance(self._modules.get(module), nn.Embedding)
        if parameter is None or not (saved or embeddings or (last == "bias" and self._config.biases != "none")):
            raise self._refused(key, "is no tensor that its adapter_config.json names")
        self._check_shape(key, tensor, list(parameter.shape))
        self._replaced[name] = tensor

    def _check_shape(self, key: str, tensor: Tensor, wanted: list[int]) -> None:
        if list(tensor.shape) != wanted:
            raise self._refused(key, f"has the shape {list(tensor.shape)}, its place wants {wanted}: another base?")

    def _pair(self, name: str, read: _ModuleTensors) -> Pair:
        module, config, own_name = self._modules[name], self._config, self._own_name(name)
        if not (is_linear(module) or isinstance(module, nn.Embedding)):
            kind = type(module).__name__
            raise self._refused(read.key, f"is for a {kind}; adapters of linear layers and embeddings are served")
        if not self._takes(name):
            raise self._refused(read.key, "is of a module that target_modules of its adapter_config.json leaves out")
        for role, key in (("down", "lora_A"), ("up", "lora_B"), *([("magnitude", "magnitude")] * config.dora)):
            if role not in read.tensors:
                raise self._refused(read.key, f"stands without its {key}")
        inputs, outputs = sizes_of(module)
        tensors, rank = read.tensors, config.rank_of(own_name)
        self._check_shape(f"{name}.lora_A", tensors["down"], [rank, inputs])
        self._check_shape(f"{name}.lora_B", tensors["up"], [outputs, rank])
        for role in ("bias", "magnitude"):
            if role in tensors:
                tensors[role] = tensors[role].reshape(-1)
                self._check_shape(f"{name}: the {role}", tensors[role], [outputs])
        if "magnitude" in tensors and (not config.dora or "bias" in tensors or isinstance(module, nn.Embedding)):
            raise self._refused(read.key, "DoRA is served for linear layers alone, with use_dora and no lora_bias")
        if "bias" in tensors and getattr(module, "bias", None) is None:
            raise self._refused(read.key, "adds a bias (lora_bias) to a layer that has none")
        return Pair(scale=config.scale_of(own_name), **tensors)

    def _takes(self, name: str) -> bool:
        module = self._modules[name]
        head = module is self._model.get_output_embeddings() or name in HEADS
        return self._config.takes(self._own_name(name), linear=is_linear(module) and not head)

    def _check_complete(self, pairs: dict[str, Pair]) -> None:
        """Raises ModelRefused where a module that was trained has no tensors."""
        lacking = [name for name in self._trained() if name not in pairs]
        if lacking:
            raise ModelRefused(
                f"{self._adapter.file} lacks lora_A and lora_B of {lacking[0]} and of {len(lacking) - 1} other modules "
                f"that its {self._config.file.name} names"
            )
        for name in self._parameters:
            if name not in self._replaced and not self._is_unused(name) and self._was_saved(name, pairs):
                raise ModelRefused(f"{self._adapter.file} lacks {name}, which its {self._config.file.name} names")

    def _was_saved(self, parameter: str, pairs: dict[str, Pair]) -> bool:
        """Whether an adapter has a parameter whole: one of a module that was saved, or a bias that was trained."""
        module, _, last = parameter.rpartition(".")
        biases = self._config.biases == "all" or (self._config.biases == "lora_only" and module in pairs)
        return self._config.saves(self._own_name(module)) or (last == "bias" and biases)

    def _is_unused(self, name: str) -> bool:
        return name.removeprefix(f"{self._model.base_model_prefix}.").startswith(UNUSED)

    def _trained(self) -> Iterator[str]:
        for name, module in self._modules.items():
            served = is_linear(module) or isinstance(module, nn.Embedding)
            if served and not self._is_unused(name) and self._takes(name):
                yield name

    def _rows(self, name: str, read: _ModuleTensors) -> tuple[tuple[int, ...], Tensor]:
        """Ids of tokens and the embeddings that replace theirs."""
        module, rows = self._modules[name], read.tensors["rows"]
        inputs = module is self._model.get_input_embeddings()
        ids = next(
            (ids for part, ids in self._config.tokens.items() if (name.endswith(part) if part else inputs)), None
        )
        if ids is None or not isinstance(module, nn.Embedding) or len(read.tensors) > 1:
            raise self._refused(read.key, "is of no embeddings that trainable_token_indices names")
        self._check_shape(read.key, rows, [len(ids), module.embedding_dim])
        if max(ids, default=0) >= module.num_embeddings:
            raise self._refused(read.key, f"is for a token id beyond the {module.num_embeddings} of the base")
        return ids, rows

    def _check_tied(self, changed: set[str]) -> None:
        """Raises ModelRefused where embeddings change whose weight is that of the model's head, too."""
        head = self._model.get_output_embeddings()
        for name in sorted(changed):
            module = self._modules.get(name)
            if head is not None and module is not head and getattr(module, "weight", None) is head.weight:
                raise ModelRefused(
                    f"{self._adapter.file}: it changes {name}, which is tied to the model's head: merge it by peft"
                )


def sizes_of(module: nn.Module) -> tuple[int, int]:
    """Inputs and outputs of a linear layer; rows of embeddings and their width."""
    weight: Any = module.weight
    rows, columns = weight.shape
    return (rows, columns) if isinstance(module, Conv1D | nn.Embedding) else (columns, rows)


def _split(key: str) -> tuple[str, str]:
    """Name of the module that a tensor belongs to, and its role there; for a whole parameter its name and ""."""
    name = key.removeprefix(PREFIX)
    for ending, role in ROLES.items():
        if name.endswith(f".{ending}"):
            return _unwrapped(name.removesuffix(f".{ending}")), role
    return _unwrapped(name), ""


def _unwrapped(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(f"{wrapper}.", ".").removesuffix(wrapper)
    return name


def _module_of(key: str) -> str:
    name, role = _split(key)
    return name if role else name.rpartition(".")[0]

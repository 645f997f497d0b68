"""Reads adapter_config.json, PEFT's description of a LoRA adapter (arXiv:2106.09685). It reads JSON only.

Served are LoRA and rsLoRA (arXiv:2312.03732) of linear layers. Every other type and option that changes rows is refused
by its name, also one that a later PEFT may add: an option that is not known must be unset.
"""

import re
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_worker.repository.files import read_object, whole
from shared.errors import ModelRefused

CONFIG = "adapter_config.json"
ALL_LINEAR = "all-linear"
"""PEFT's short form in `target_modules` for every linear layer but the model's head."""
READ = {"peft_type", "base_model_name_or_path", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora"}
READ |= {"bias", "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "revision"}
READ |= {"init_lora_weights"}
"""Keys that are read below."""
WITHOUT_EFFECT = {"task_type", "auto_mapping", "inference_mode", "peft_version", "lora_dropout", "fan_in_fan_out"}
WITHOUT_EFFECT |= {"megatron_core", "qalora_group_size", "ensure_weight_tying", "lora_bias", "runtime_config"}
WITHOUT_EFFECT |= {"loftq_config", "eva_config", "velora_config"}
"""Keys that change no row, or that the tensors tell: a layer's class says how its weight lies, whatever
`fan_in_fan_out` says, as in PEFT."""
PLAIN_BEGINNINGS = (None, True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base's weights as they are; others replace them before training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedAdapter:
    """An adapter as a user names it: clients call it `name`, its files are in `folder`, a directory or a hub id."""

    name: str
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """What adapter_config.json says of a LoRA adapter; `file` is its path.

    `base` is the folder or hub id of the model that it was trained on, at `revision`; "" where the file does not say.
    `targets` and `excluded` are a pattern, or names that the names of modules end with. `layers` are the numbers of the
    layers that have it, none for all. `trains_biases`: the biases of the layers that have it were trained, too.
    """

    file: Path
    base: str
    revision: str
    rank: int
    alpha: float
    rank_pattern: dict[str, int]
    alpha_pattern: dict[str, float]
    stabilised: bool
    trains_biases: bool
    targets: str | tuple[str, ...]
    excluded: str | tuple[str, ...]
    layers: tuple[int, ...]
    layers_pattern: tuple[str, ...]

    def rank_of(self, module: str) -> int:
        """Rank of the pair of matrices of a module."""
        return self.rank_pattern.get(_pattern_of(self.rank_pattern, module), self.rank)

    def scale_of(self, module: str) -> float:
        """The factor of B A: alpha / rank, or alpha / sqrt(rank) where ranks are stabilised."""
        alpha, rank = self.alpha_pattern.get(_pattern_of(self.alpha_pattern, module), self.alpha), self.rank_of(module)
        return alpha / (rank**0.5 if self.stabilised else rank)

    def takes(self, module: str, *, linear: bool) -> bool:
        """Whether a module was trained with a pair of matrices, by PEFT's rules. `linear`: it is a linear layer and not
        the model's head."""
        if _matches(self.excluded, module):
            return False
        if isinstance(self.targets, str):
            return linear if self.targets.lower() == ALL_LINEAR else _matches(self.targets, module)
        return _matches(self.targets, module) and (not self.layers or self._layer_of(module) in self.layers)

    def _layer_of(self, module: str) -> int | None:
        patterns = [rf"(?:^|.*?\.){pattern}\.(\d+)\." for pattern in self.layers_pattern] or [r".*?\.[^.]*\.(\d+)\."]
        numbers = [match[1] for pattern in patterns if (match := re.match(pattern, module))]
        return int(numbers[0]) if numbers else None


def _pattern_of(patterns: dict[str, Any], module: str) -> str:
    return next((pattern for pattern in patterns if re.match(rf"(.*\.)?({pattern})$", module)), module)


def _matches(names: str | tuple[str, ...], module: str) -> bool:
    if isinstance(names, str):
        return bool(names) and re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def read(folder: Path) -> AdapterConfig:
    """Reads the description in a folder. Raises ModelRefused, which names the file and the key."""
    file = folder / CONFIG
    said = read_object(file)
    kind = said.get("peft_type") or "of an unknown type"
    if kind != "LORA":
        raise ModelRefused(f"{file}: peft_type {kind} is not served, LORA is")
    others = {key: said[key] for key in sorted(said.keys() - READ - WITHOUT_EFFECT)}
    biases = said.get("bias", "none")
    if biases not in ("none", "lora_only"):
        others["bias"] = biases
    changes = [f"{key} = {reprlib.repr(value)}" for key, value in others.items() if value not in (None, False, [], {})]
    if changes:
        raise merge_first(file, ", ".join(changes))
    if said.get("init_lora_weights") not in PLAIN_BEGINNINGS:
        raise ModelRefused(
            f"{file}: init_lora_weights = {said['init_lora_weights']!r} changes the base's weights: save the adapter "
            "by PEFT's path_initial_model_for_weight_conversion, or merge it"
        )
    return AdapterConfig(
        file=file,
        base=_text(said, "base_model_name_or_path", file),
        revision=_text(said, "revision", file),
        rank=whole(said.get("r", 8), f"{file}: r"),
        alpha=_number(said.get("lora_alpha", 8), f"{file}: lora_alpha"),
        rank_pattern={
            pattern: whole(rank, f"{file}: rank_pattern") for pattern, rank in _object(said, "rank_pattern", file)
        },
        alpha_pattern={
            pattern: _number(alpha, f"{file}: alpha_pattern") for pattern, alpha in _object(said, "alpha_pattern", file)
        },
        stabilised=said.get("use_rslora") is True,
        trains_biases=biases == "lora_only",
        targets=_names(said, "target_modules", file),
        excluded=_names(said, "exclude_modules", file),
        layers=_wholes(said.get("layers_to_transform"), f"{file}: layers_to_transform"),
        layers_pattern=_listed(_names(said, "layers_pattern", file)),
    )


def merge_first(file: Path, what: str) -> ModelRefused:
    """The refusal of an adapter that is more than LoRA of linear layers; `what` names its option or tensor."""
    return ModelRefused(
        f"{file}: {what}: only LoRA and rsLoRA of linear layers are served; merge the adapter with peft's "
        "merge_and_unload and serve the merged folder"
    )


def _text(said: dict[str, Any], key: str, file: Path) -> str:
    value = said.get(key) or ""
    if not isinstance(value, str):
        raise ModelRefused(f"{file}: {key} {value!r} must be a text")
    return value


def _number(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < float("inf"):
        raise ModelRefused(f"{where} {value!r} must be a number")
    return float(value)


def _object(said: dict[str, Any], key: str, file: Path) -> list[tuple[str, Any]]:
    value = said.get(key) or {}
    if not isinstance(value, dict):
        raise ModelRefused(f"{file}: {key} {value!r} must be an object, numbers by pattern")
    for pattern in value:
        _check_pattern(pattern, f"{file}: {key}")
    return list(value.items())


def _names(said: dict[str, Any], key: str, file: Path) -> str | tuple[str, ...]:
    value = said.get(key) or []
    if isinstance(value, str):
        _check_pattern(value, f"{file}: {key}")
        return value
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ModelRefused(f"{file}: {key} {value!r} must be a pattern or a list of names")
    return tuple(value)


def _check_pattern(pattern: str, where: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ModelRefused(f"{where} {pattern!r} is no pattern: {error}") from None


def _listed(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _wholes(value: Any, where: str) -> tuple[int, ...]:
    listed = [] if value is None else value if isinstance(value, list) else [value]
    return tuple(whole(number, where, 0) for number in listed)

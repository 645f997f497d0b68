"""A model repository on disk -> how its texts are to be embedded. Reads JSON only; loads no weights.

Formats: sentence-transformers' modules.json with its module folders, in the forms of versions 2 to 5 and 6, and
plain transformers repositories (mean pooling, as sentence-transformers reads them).
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POOLINGS = ("cls", "mean", "lasttoken")
LEGACY_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


class ModelRefused(Exception):
    """A repository that cannot be served; the message is one line and names the file and the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How token rows of a model become vectors, and how its texts are prepared.

    `max_tokens` None means as many as the model has positions.
    """

    pooling: str = "mean"
    include_prompt: bool = True
    normalize: bool = False
    max_tokens: int | None = None
    lowercase: bool = False
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str = ""
    allowed_dimensions: tuple[int, ...] = ()
    trunk: str = ""
    notice: str = ""


def read(path: Path) -> Recipe:
    """Reads the recipe of the repository at `path`. Raises ModelRefused."""
    if not path.is_dir():
        raise ModelRefused(f"{path} is not a directory")
    modules = read_json(path / "modules.json", missing=[])
    values: dict[str, Any] = {}
    for module in modules or [{"type": "Transformer", "path": ""}]:
        values |= _read_module(path, module)
    values |= _read_prompts(path / "config_sentence_transformers.json")
    return Recipe(**values)


def read_json(path: Path, missing: Any = None) -> Any:
    """The file's content, or `missing` where there is no such file and one may be absent."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if missing is None:
            raise ModelRefused(f"{path} is missing") from None
        return missing
    except (OSError, ValueError) as error:
        raise ModelRefused(f"{path} cannot be read: {error}") from None


def _read_module(path: Path, module: dict[str, Any]) -> dict[str, Any]:
    try:
        kind, folder = str(module["type"]).rpartition(".")[2], path / str(module["path"])
    except (KeyError, TypeError):
        raise ModelRefused(f"{path / 'modules.json'}: a module lacks type or path") from None
    match kind:
        case "Transformer":
            return _read_transformer(folder) | {"trunk": str(module["path"])}
        case "Pooling":
            return _read_pooling(folder / "config.json")
        case "Normalize":
            return {"normalize": True}
    raise ModelRefused(f"{path / 'modules.json'}: module type {module['type']} is not supported")


def _read_transformer(folder: Path) -> dict[str, Any]:
    config = read_json(folder / "config.json")
    settings: dict[str, Any] = {}
    for file in sorted(folder.glob("sentence_*_config.json")):
        settings = read_json(file)
    limit = settings.get("max_seq_length")
    if limit is None:
        limit = read_json(folder / "tokenizer_config.json", missing={}).get("model_max_length")
    sensible = isinstance(limit, int | float) and 0 < limit < 10_000_000  # tokenizers write 1e30 for "none"
    return {
        "max_tokens": int(limit) if sensible else None,
        "lowercase": bool(settings.get("do_lower_case")),
        "allowed_dimensions": tuple(sorted(config.get("matryoshka_dimensions") or ())),
    }


def _read_pooling(file: Path) -> dict[str, Any]:
    config = read_json(file)
    named = config.get("pooling_mode")
    if named is None:
        modes = [mode for key, mode in LEGACY_POOLINGS.items() if config.get(key)] or ["mean"]
    else:
        modes = [named] if isinstance(named, str) else list(named)
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise ModelRefused(f"{file}: pooling_mode {'+'.join(map(str, modes))} is not one of {', '.join(POOLINGS)}")
    return {"pooling": modes[0], "include_prompt": bool(config.get("include_prompt", True))}


def _read_prompts(file: Path) -> dict[str, Any]:
    config = read_json(file, missing={})
    prompts = {name: text for name, text in (config.get("prompts") or {}).items() if text is not None}
    default = config.get("default_prompt_name") or ""
    if default and default not in prompts:
        raise ModelRefused(f"{file}: default_prompt_name {default!r} is none of its prompts")
    return {"prompts": prompts, "default_prompt_name": default}

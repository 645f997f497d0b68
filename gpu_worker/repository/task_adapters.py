"""jina-embeddings-v5-text (arXiv:2602.15547): the weights of a base, and beside them a LoRA adapter for each task.

config.json lists the tasks (`task_names`), and `adapters/TASK` holds the adapter of each. Its model type is its own,
and modules.json names code of the repository, which is not run. What that code does is written down here: the base is
EuroBERT where `is_decoder` is false, else Qwen3; the last token's row is scaled to unit length; a text may have as many
tokens as there are positions; the caller's `task` chooses the adapter, and there is no default.

So the base is read from a folder that says the same in transformers' and sentence-transformers' words. Relatives whose
adapters are of another kind are refused by their names.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu_worker.repository.adapters import CONFIG, MODULES, link, temporary_folder
from gpu_worker.repository.files import checked, counting_suffixes, read_json, read_object, texts, whole
from shared.errors import ModelRefused

MODEL_TYPE = "jina_embeddings_v5"
FOLDER = "adapters"
OWN_MODULES = [("custom_st.Transformer", "")]
"""Type and folder of the one module in its modules.json, by which sentence-transformers runs the repository's code."""
UNREAD = ("config.json", MODULES, "sentence_*_config.json")
"""Patterns of files of the repository that its code does not read, or that are written anew."""
INSTEAD = "jinaai/jina-embeddings-v5-text-small and -nano have adapters of tasks that are served"
REFUSED = {
    "XLMRobertaLoRA": "jina-embeddings-v3: the adapters of its tasks lie in its weights and change its embeddings, and "
    f"only LoRA of linear layers is served; {INSTEAD}, and jinaai/jina-embeddings-v3-hf is the model without adapters",
    "JinaEmbeddingsV4Model": "jina-embeddings-v4: it reads images, and its adapters also change layers behind the "
    f"encoder, where only LoRA of an encoder's linear layers is served; {INSTEAD}",
    "jina_embeddings_v5_omni": "jina-embeddings-v5-omni: it reads images and sounds, and its tasks also have "
    f"embeddings of their own; {INSTEAD}",
}
"""Why relatives are not served, by their architecture or model type."""
V3_IN_TRANSFORMERS = "jina_embeddings_v3"


def tasks_of(path: Path) -> dict[str, Path]:
    """Finds the folder of each task's adapter, by the names of tasks; none where a repository has no such adapters.

    Raises ModelRefused, which names the file and the key, and for a relative that is not served.
    """
    file = path / "config.json"
    config = read_object(file, missing={})
    for name in (*_listed(config.get("architectures")), config.get("model_type")):
        if isinstance(name, str) and name in REFUSED:
            raise ModelRefused(f"{file}: {REFUSED[name]}")
    if config.get("model_type") != MODEL_TYPE:
        return {}
    key = f"{file}: task_names"
    names = texts(config.get("task_names"), key)
    if not names or len({*names}) < len(names):
        raise ModelRefused(f"{key} {list(names)!r} must name tasks, each of them once")
    for name in names:
        if name in ("", "..") or name != Path(name).name:
            raise ModelRefused(f"{key} {name!r} must be the name of a folder in {FOLDER}")
        if not (path / FOLDER / name / CONFIG).is_file():
            raise ModelRefused(f"{path / FOLDER / name / CONFIG} is missing; task_names of config.json names the task")
    return {name: path / FOLDER / name for name in names}


@contextmanager
def base_folder(path: Path) -> Iterator[Path]:
    """A folder to read the base of a repository with such adapters from, as long as the context lasts: its files, and
    what its code does as sentence-transformers' modules say it. Raises ModelRefused, naming the file."""
    modules = checked(read_json(path / MODULES), list, f"{path / MODULES}: its content")
    if [(module.get("type"), module.get("path")) for module in modules if isinstance(module, dict)] != OWN_MODULES:
        raise ModelRefused(
            f"{path / MODULES}: {MODEL_TYPE} is served with one module, custom_st.Transformer at its root"
        )
    with temporary_folder(path) as root:
        for file in path.iterdir():
            unread = any(file.match(pattern) for pattern in UNREAD)
            if file.is_file() and file.suffix in counting_suffixes(False) and not unread:
                link(file, root / file.name)
        for name, content in _in_known_words(path / "config.json").items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text(json.dumps(content), encoding="utf-8")
        yield root


def _in_known_words(file: Path) -> dict[str, Any]:
    """What the repository's code does, as files by name; `file` is its config.json."""
    config = read_object(file)
    kind, architecture = ("eurobert", "EuroBertModel") if config.get("is_decoder") is False else ("qwen3", "Qwen3Model")
    left_out = ("auto_map", "task_names")
    kept_keys = {key: value for key, value in config.items() if key not in left_out}
    width, positions = (whole(config.get(key), f"{file}: {key}") for key in ("hidden_size", "max_position_embeddings"))
    return {
        "config.json": kept_keys | {"model_type": kind, "architectures": [architecture]},
        "sentence_bert_config.json": {"max_seq_length": positions},
        MODULES: [
            {"idx": place, "name": str(place), "path": folder, "type": f"sentence_transformers.models.{name}"}
            for place, (name, folder) in enumerate(
                (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
            )
        ],
        "1_Pooling/config.json": {"embedding_dimension": width, "pooling_mode": "lasttoken"},
    }


def notice_of(path: Path) -> str:
    """Tells users of jina-embeddings-v3 in transformers' form that the adapters beside it are not served; else ""."""
    if read_object(path / "config.json", missing={}).get("model_type") != V3_IN_TRANSFORMERS:
        return ""
    folders = ", ".join(sorted(file.parent.name for file in path.glob(f"*/{CONFIG}")))
    return f"served without the adapters of its tasks, which change embeddings: {folders}" if folders else ""


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

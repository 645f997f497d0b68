"""Refusal of adapters (LoRA and its kin, as peft writes them) in a model's folder: they change rows and are not served.

sentence-transformers and transformers put an adapter on the model wherever `adapter_config.json` lies beside it and
peft is installed; without peft sentence-transformers refuses the model, and transformers alone ignores the adapter.
"""

from pathlib import Path

from gpu_worker.repository.files import read_object
from shared.errors import ModelRefused

NAME = "adapter_config.json"
REMEDY = "merge it into its base (merge_and_unload of peft, then save_pretrained) and serve the merged folder"


def check_none(folder: Path) -> None:
    """Raises ModelRefused where an adapter lies in the folder of a transformers model, with or without its base."""
    file = folder / NAME
    if not file.is_file():
        return
    described = read_object(file)
    kind = described.get("peft_type") or "of an unknown type"
    if (folder / "config.json").is_file():
        raise ModelRefused(
            f"{file}: an adapter ({kind}) lies beside the model; its rows are those of both together, and adapters are "
            f"not served: {REMEDY}, or take {NAME} away to serve the base alone"
        )
    base = described.get("base_model_name_or_path") or "a base without a name"
    raise ModelRefused(
        f"{folder} holds an adapter alone ({kind}, of {base}) and no config.json: adapters are not served: {REMEDY}"
    )

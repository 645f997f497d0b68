"""Refuses checkpoints whose weights were quantised before they were published, whatever the format.

It knows the names of formats and the types of stored tensors, and reads no tensor.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import PretrainedConfig

from gpu_worker.repository.files import read_object, safe_files
from shared.errors import ModelRefused

KEYS = ("quantization_config", "compression_config", "quantization")
"""Keys of config.json: transformers', that of older compressed-tensors, MLX's."""
QUANTISED = {torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn, torch.float8_e5m2}
"""Types of quantised weights."""
STORED = {"I8", "U8", "I32", "F8_E4M3", "F8_E5M2", "F4"}
"""Types of quantised weights in a safetensors file."""
WEIGHT_NAMES = ("weight", "weight_packed", "qweight")
HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")


def check_config(file: Path, config: PretrainedConfig) -> None:
    """Raises ModelRefused where `config`, read from `file`, or a part of it says that weights are quantised."""
    for section in (config, *(part for part in vars(config).values() if isinstance(part, PretrainedConfig))):
        for key in KEYS:
            said = getattr(section, key, None)
            if said is not None:
                raise ModelRefused(
                    f"{file}: {key} ({_format(said)}): quantised weights are not served; serve the checkpoint that "
                    f"they were made from{_origin(file)}; --linear int8 rounds its layers at load"
                )


def check_files(folder: Path) -> None:
    """Raises ModelRefused for a weight in a quantised type: transformers would take its numbers as they are."""
    for file in safe_files(folder):
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118
                kind = stored.get_slice(name).get_dtype() if name.endswith(WEIGHT_NAMES) else ""
                if kind in STORED:
                    raise ModelRefused(
                        f"{file}: {name} is stored as {kind}: quantised weights are not served; serve the checkpoint "
                        f"that they were made from{_origin(folder / 'config.json')}"
                    )


def _format(said: object) -> str:
    """The format's name, as far as config.json tells it."""
    method = said.get("quant_method") if isinstance(said, Mapping) else getattr(said, "quant_method", None)
    return " ".join(str(getattr(method, "value", method) or "no quant_method").split())


def _origin(file: Path) -> str:
    """The hub id that a config.json names as the model it was loaded from, for a refusal; "" where it names none."""
    named = read_object(file, missing={}).get("_name_or_path")
    return f" (_name_or_path: {named})" if isinstance(named, str) and HUB_ID.fullmatch(named) else ""

"""A LoRA adapter as peft writes it, by hand: of the query layers of a BERT, with seeded matrices of rank 2."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

RANK, ALPHA, LAYER = 2, 4, "encoder.layer.{}.attention.self.query"
BASE = "someone/a-base"


def lora(layers: int = 2, width: int = 64) -> dict[str, Tensor]:
    """A [rank, in] and B [out, rank] of each layer, under peft's names."""
    generator, tensors = torch.Generator().manual_seed(3), {}
    for number in range(layers):
        name = f"base_model.model.{LAYER.format(number)}"
        tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, width, generator=generator)
        tensors[f"{name}.lora_B.weight"] = 0.2 * torch.randn(width, RANK, generator=generator)
    return tensors


def write_adapter(folder: Path, base: str = BASE) -> Path:
    """adapter_config.json and adapter_model.safetensors."""
    folder.mkdir(exist_ok=True)
    config = {"peft_type": "LORA", "task_type": "FEATURE_EXTRACTION", "base_model_name_or_path": base, "r": RANK}
    config |= {"lora_alpha": ALPHA, "target_modules": ["query"], "bias": "none", "inference_mode": True}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(lora(), folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def merge(folder: Path) -> None:
    """W + alpha / rank x B A, in the weights of the base (arXiv:2106.09685)."""
    weights, added = load_file(folder / "model.safetensors"), lora()
    for number in range(2):
        layer = LAYER.format(number)
        a, b = (added[f"base_model.model.{layer}.lora_{part}.weight"] for part in "AB")
        weights[f"{layer}.weight"] += ALPHA / RANK * b @ a
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

"""LoRA adapters as PEFT makes and saves them, with seeded matrices that change a model clearly."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftMixedModel, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, PreTrainedModel

from support.tiny import reader, write_pooled

RANK, ALPHA = 2, 4
QUERIES: dict[str, Any] = {"target_modules": ["query"]}


def write_adapter(folder: Path, base: Path, seed: int = 3, auto: Any = AutoModel, **options: Any) -> Path:
    """Writes adapter_config.json and adapter_model.safetensors of an adapter on the model in `base`."""
    peft = adapted(auto.from_pretrained(base), seed, **options)
    peft.save_pretrained(str(folder))
    (folder / "README.md").unlink()
    return folder


def adapted(model: PreTrainedModel, seed: int = 3, **options: Any) -> PeftModel | PeftMixedModel:
    """A model with an adapter on it, all of whose numbers are random: PEFT begins with B = 0, which changes nothing."""
    chosen = QUERIES | {"r": RANK, "lora_alpha": ALPHA} | options
    peft = get_peft_model(model, LoraConfig(**chosen))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter += (0.2 if "lora_" in name else 0.1) * noise
    return peft


def write_sentence_model(folder: Path, base: Path, pooling: str = "mean", seed: int = 3, **options: Any) -> Path:
    """An adapter in a folder as sentence-transformers saves it: modules and a tokenizer beside it, no weights."""
    write_adapter(folder, base, seed, **options)
    reader().save_pretrained(folder)
    return write_pooled(folder, pooling)


def beside_weights(folder: Path, base: Path, **options: Any) -> Path:
    """A model with its weights, and an adapter beside them."""
    shutil.copytree(base, folder)
    return write_adapter(folder, base, **options)


def change_tensors(folder: Path, **changed: Tensor | None) -> None:
    """Changes tensors of an adapter, by a part of their names; None takes them away."""
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    for name in list(tensors):
        for part, tensor in changed.items():
            if part in name and tensor is None:
                del tensors[name]
            elif part in name and tensor is not None:
                tensors[name] = tensor.clone()
    save_file(tensors, file, metadata={"format": "pt"})


def change_config(folder: Path, **values: Any) -> None:
    """Changes values of adapter_config.json."""
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def peft_states(folder: Path, base: Path, texts: list[str]) -> list[Tensor]:
    """Hidden states [L, H] of texts by peft itself, one text at a time."""
    model = PeftModel.from_pretrained(AutoModel.from_pretrained(base), str(folder)).eval()
    with torch.inference_mode():
        return [model(**reader()(text, return_tensors="pt")).last_hidden_state[0] for text in texts]


def peft_rows(folder: Path, base: Path, texts: list[str]) -> np.ndarray:
    """The mean of each text's hidden states, [S, H]."""
    return torch.stack([states.mean(dim=0) for states in peft_states(folder, base, texts)]).numpy()

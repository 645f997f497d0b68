"""Writes a folder with a model of random weights, as transformers and sentence-transformers write theirs.

It knows the files' names and forms; which shapes there are is in shapes.py.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PretrainedConfig

from gpu_worker.device.placement import Placement
from gpu_worker.model.source import quiet
from harness.random_models import synthetic
from harness.random_models.shapes import Heads

MODELS = "sentence_transformers.models."
CLASSES = {
    "LogitScore": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore",
    "MultiVectorMask": "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
    "SpladePooling": "sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling",
}
"""Classes of modules that are not among `MODELS`."""
NAMES = {f"{role}_token": f"[{role.upper()}]" for role in ("cls", "sep", "pad", "unk", "mask")}
NAMES |= {"bos_token": "[CLS]", "eos_token": "[SEP]"}
GRITLM = {"architectures": ["MistralForCausalLM"], "auto_map": {"AutoModel": "modeling_gritlm7b.MistralModel"}}
"""What GritLM's config.json says; the class holds the encoder under the name `model`."""
CPU = Placement(device=torch.device("cpu"), dtype=torch.float32)


def write_named(name: str, folder: Path, *, layers: int = 0, placement: Placement = CPU, max_tokens: int = 0) -> Path:
    """Writes a known shape; see `write`. `layers`: as many, 0 for those of the shape. Raises ValueError."""
    config, heads = synthetic.shape_of(name)
    if layers:
        synthetic.with_layers(config, layers)
    return write(folder, config, heads, placement, max_tokens)


def write(
    folder: Path, config: PretrainedConfig, heads: Heads, placement: Placement = CPU, max_tokens: int = 0
) -> Path:
    """Writes all files of a model into `folder`; returns the folder.

    `placement`: the device that makes the weights, and the dtype in which they are saved. `max_tokens`: the limit that
    the files set for a text, 0 for none.
    """
    model = synthetic.build(config, heads.weights_of, placement)
    named = {f"model.{name}": tensor for name, tensor in model.state_dict().items()} if heads.gritlm else None
    with quiet():
        model.save_pretrained(folder, state_dict=named, max_shard_size="100GB")
    write_files(folder, config, heads, placement.dtype, max_tokens)
    return folder


def write_without_weights(name: str, folder: Path) -> Path:
    """Writes a known shape but for the weights of its encoder; returns the folder. Raises ValueError."""
    config, heads = synthetic.shape_of(name)
    nowhere = Placement(device=torch.device("meta"), dtype=torch.bfloat16)
    config.architectures = [type(synthetic.build(config, heads.weights_of, nowhere)).__name__]
    write_files(folder, config, heads, nowhere.dtype)
    return folder


def write_files(folder: Path, config: PretrainedConfig, heads: Heads, dtype: torch.dtype, max_tokens: int = 0) -> None:
    """Writes what a folder has beside the weights of its encoder; see `write`."""
    if heads.modules:
        modules = [("Transformer", ""), *((kind, f"{n}_{kind}") for n, kind in enumerate(heads.modules, 1))]
        _json(
            folder / "modules.json",
            [
                {"idx": number, "name": str(number), "path": path, "type": CLASSES.get(kind, MODELS + kind)}
                for number, (kind, path) in enumerate(modules)
            ],
        )
        for kind, path in modules[1:]:
            _write_module(folder / path, heads.modules[kind])
        limit = {"max_seq_length": max_tokens, "do_lower_case": False} if max_tokens else {}
        if heads.beside or limit:
            _json(folder / "sentence_bert_config.json", {**heads.beside, **limit})
    if heads.described:
        _json(folder / "config_sentence_transformers.json", heads.described)
    for name, outputs in heads.linear.items():
        torch.save(_linear(config.hidden_size, outputs, bias=True), folder / f"{name}.pt")
    _write_tokenizer(folder, config, heads.chat_template, max_tokens)
    if heads.gritlm:
        config.update(GRITLM)
    config.dtype = dtype
    config.save_pretrained(folder)


def _write_module(folder: Path, config: Any) -> None:
    """Writes a module's config, and the seeded weights of a Dense."""
    _json(folder / "config.json", config)
    if "in_features" in config:
        tensors = _linear(config["in_features"], config["out_features"], bias=config["bias"])
        save_file({f"linear.{role}": tensor for role, tensor in tensors.items()}, folder / "model.safetensors")


def _linear(inputs: int, outputs: int, bias: bool) -> dict[str, Tensor]:
    """Makes seeded random tensors of a linear layer."""
    generator = torch.Generator().manual_seed(synthetic.SEED + outputs)
    shapes = {"weight": (outputs, inputs)} | ({"bias": (outputs,)} if bias else {})
    return {role: 0.2 * torch.randn(shape, generator=generator) for role, shape in shapes.items()}


def _write_tokenizer(folder: Path, config: PretrainedConfig, chat_template: str, max_tokens: int) -> None:
    """Writes the synthetic tokenizer; it gives token types where the model has some."""
    (folder / "tokenizer.json").write_bytes(synthetic.tokenizer(config.vocab_size).content)
    types = ["token_type_ids"] if getattr(config, "type_vocab_size", 0) > 1 else []
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **NAMES}
    settings["model_input_names"] = ["input_ids", *types, "attention_mask"]
    if chat_template:
        settings["chat_template"] = chat_template
    if max_tokens:
        settings["model_max_length"] = max_tokens
    _json(folder / "tokenizer_config.json", settings)


def _json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, default=dict) + "\n")

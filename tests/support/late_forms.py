"""Late-interaction repositories in every form on disk, small: written by hand, as their tools write them."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from harness.random_models import synthetic
from support.tiny import NAMES, write_json

PYLATE = "config_sentence_transformers"
BESIDE = "sentence_bert_config"
WORDS = ("[unused0]", "[unused1]", "[Q] ", "[D] ", "[S]")
"""Tokens that stand in the vocabulary for its last words: all of them fall apart where they are not special."""


def write_reader(folder: Path, *added: str, normalized: bool = True, cased: bool = False, **names: Any) -> None:
    """A tokenizer that parts words at punctuation, as BERT's, and lowers them but if `cased`; `added` of WORDS are
    added tokens."""
    description = json.loads(synthetic.tokenizer(1000).content)
    vocabulary = description["model"]["vocab"]
    ordinary = sorted(vocabulary, key=vocabulary.__getitem__)
    for word, place in zip(WORDS, ordinary[-len(WORDS) :], strict=True):
        vocabulary[word] = vocabulary.pop(place)
    description["normalizer"] = None if cased else description["normalizer"]
    description["pre_tokenizer"] = {"type": "BertPreTokenizer"}
    reader = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(description)), model_max_length=128, **NAMES | names
    )
    reader.add_tokens([AddedToken(word, normalized=normalized) for word in added])
    reader.save_pretrained(folder)


def write_dense(folder: Path, name: str, **config: Any) -> None:
    activation = {"activation_function": "torch.nn.modules.linear.Identity"}
    write_json(
        folder, **{f"{name}__config": {"in_features": 64, "out_features": 32, "bias": False} | activation | config}
    )
    weight = 0.2 * torch.randn(32, 64, generator=torch.Generator().manual_seed(6))
    save_file({"linear.weight": weight}, folder / name / "model.safetensors")


def write_pylate(folder: Path, encoder: Path, described: dict[str, Any], **beside: Any) -> Path:
    """`described` is config_sentence_transformers.json, `beside` sentence_bert_config.json."""
    shutil.copytree(encoder, folder, dirs_exist_ok=True)
    write_reader(folder)
    write_dense(folder, "1_Dense")
    kinds = [("", "sentence_transformers.models.Transformer"), ("1_Dense", "pylate.models.Dense.Dense")]
    modules = [{"idx": n, "name": str(n), "path": path, "type": kind} for n, (path, kind) in enumerate(kinds)]
    return write_json(folder, modules=modules, **{PYLATE: described, BESIDE: beside})


def write_native(folder: Path, encoder: Path, mask: dict[str, Any] | None, unit: bool = True, **beside: Any) -> Path:
    """As sentence-transformers 6 writes it; `mask` is the MultiVectorMask's config, None for none."""
    write_pylate(
        folder, encoder, {"model_type": "MultiVectorEncoder", "prompts": {"query": "w1 ", "document": ""}}, **beside
    )
    write_dense(folder, "1_Dense", module_input_name="token_embeddings")
    base, late = "sentence_transformers.base.modules", "sentence_transformers.multi_vector_encoder.modules"
    kinds = [("", f"{base}.transformer.Transformer"), ("1_Dense", f"{base}.dense.Dense")]
    if mask is not None:
        kinds.append(("2_MultiVectorMask", f"{late}.multi_vector_mask.MultiVectorMask"))
        write_json(folder, **{"2_MultiVectorMask__config": mask})
    if unit:
        kinds.append(("3_Normalize", f"{base}.normalize.Normalize"))
        write_json(folder, **{"3_Normalize__config": {"module_input_name": "token_embeddings"}})
    modules = [{"idx": n, "name": str(n), "path": path, "type": kind} for n, (path, kind) in enumerate(kinds)]
    return write_json(folder, modules=modules)


def write_pooled(folder: Path, config: dict[str, Any], behind: str = "") -> Path:
    """Adds a module to what `write_native` wrote, which pools token vectors, and after it that of the folder `behind`,
    if it is given, once more."""
    modules = json.loads((folder / "modules.json").read_text())
    repeated = [module for module in modules if module["path"] == behind and behind]
    kind = "sentence_transformers.multi_vector_encoder.modules.token_pooling.HierarchicalTokenPooling"
    modules += [{"path": "4_HierarchicalTokenPooling", "type": kind}, *repeated]
    numbered = [module | {"idx": number, "name": str(number)} for number, module in enumerate(modules)]
    return write_json(folder, modules=numbered, **{"4_HierarchicalTokenPooling__config": config})


def write_stanford(folder: Path, encoder: Path, metadata: dict[str, Any] | None) -> Path:
    """One file of weights: the encoder's under `bert.`, the projection at the root; `metadata` None for no file."""
    shutil.copytree(encoder, folder, dirs_exist_ok=True)
    write_reader(folder)
    weights = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    weights["linear.weight"] = 0.2 * torch.randn(48, 64, generator=torch.Generator().manual_seed(8))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
    if metadata is not None:
        (folder / "artifact.metadata").write_text(json.dumps(metadata))
    return write_json(folder, config=config)

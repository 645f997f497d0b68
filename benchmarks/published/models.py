"""Files of a shape with random weights, in the form that both servers read, written once and used again.

The folder is that of a sentence-transformers model: config, weights, tokenizer, `modules.json` and a pooling; or that
of a Stanford ColBERT, with a projection; or GritLM's, which has neither. MiniLM has its real weights in a package, and
nothing is written for it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.machine import ROOT
from benchmarks.ours import RandomModel, random_model
from benchmarks.published.row import Row, model_name
from benchmarks.workloads import MINILM, minilm_folder

MODELS = ROOT / "build" / "published"
ST = "sentence_transformers.models."
POOLINGS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "lasttoken": "pooling_mode_lasttoken"}
COLBERT, PROJECTION = "HF_ColBERT", "linear.weight"
"""The class that config.json of a Stanford ColBERT names, and the tensor of its projection."""
GRITLM = "MistralForCausalLM"
"""The class that GritLM's config.json names, beside code of its own: it has no modules.json."""
MODULES = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
"""What a text goes through, and the folder of each."""
SPECIAL = {f"{role}_token": f"[{role.upper()}]" for role in ("cls", "sep", "pad", "unk", "mask")}


def folder_of(row: Row) -> Path:
    """Gives the folder of a row's model. Writes its files where they are not there yet."""
    if row.model == MINILM:
        return minilm_folder()
    name = model_name(row.model)
    kind = "ColBERT" if row.projected else "embedding"
    folder = MODELS / f"{name}-{kind}-{row.layers or 'all'}-layers-{row.dtype}-{row.max_tokens}" / name
    if not (folder / "config.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        options = {"max_tokens": row.max_tokens, "layers": row.layers, "projected": row.projected}
        write(row.model, folder, dtype=row.dtype, **options)
    return folder


def write(model: str, folder: Path, *, dtype: str, max_tokens: int, layers: int = 0, projected: int = 0) -> None:
    """Writes all files of a random model; `config.json` last, so that a folder with it is whole.

    `layers`: as many, whatever its shape says; 0 for those of its shape. `projected`: a ColBERT model instead, whose
    token rows have as many numbers.
    """
    made = random_model(model, getattr(torch, dtype), layers)
    made.config.architectures, made.config.dtype = [type(made.encoder).__name__], dtype
    if "roberta" in made.config.model_type:
        made.config.position_embedding_type = "absolute"  # published files say so, and vLLM reads it
    tensors = {name: tensor.contiguous() for name, tensor in made.encoder.state_dict().items()}
    if made.instructed:
        made.config.architectures, made.config.auto_map = [GRITLM], {"AutoModel": "modeling_gritlm7b.MistralModel"}
        tensors = {f"model.{name}": tensor for name, tensor in tensors.items()}
    elif projected:
        made.config.architectures = [COLBERT]  # without the width: vLLM 0.32 does not start where it is told
        tensors = _with_projection(tensors, made.config.hidden_size, projected)
    else:
        _write_modules(folder, made, max_tokens)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _json(folder / "tokenizer.json", _filled(json.loads(made.tokenizer), made.config.vocab_size))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_tokens} | SPECIAL
    _json(folder / "tokenizer_config.json", tokenizer)
    made.config.save_pretrained(folder)


def _with_projection(tensors: Mapping[str, Tensor], width: int, projected: int) -> dict[str, Tensor]:
    """Names the tensors of a BERT encoder as Stanford ColBERT does, and adds its projection, with seeded numbers."""
    first = next(iter(tensors.values()))
    projection = torch.randn(projected, width, generator=torch.Generator().manual_seed(projected)) / width**0.5
    return {f"bert.{name}": tensor for name, tensor in tensors.items()} | {PROJECTION: projection.to(first.dtype)}


def _write_modules(folder: Path, made: RandomModel, max_tokens: int) -> None:
    """Writes what a text goes through after the encoder: pooling and normalisation."""
    _json(folder / "sentence_bert_config.json", {"max_seq_length": max_tokens, "do_lower_case": False})
    for path in filter(None, MODULES.values()):
        (folder / path).mkdir(exist_ok=True)
    modes = {key: name == made.pooling for name, key in POOLINGS.items()}
    _json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": made.config.hidden_size} | modes)
    entries = [
        {"idx": number, "name": str(number), "path": path, "type": ST + name}
        for number, (name, path) in enumerate(MODULES.items())
    ]
    _json(folder / "modules.json", entries)


def _filled(description: Any, size: int) -> Any:
    """Fills a tokenizer's vocabulary up with words that no text has: the worker refuses a model with fewer tokens."""
    vocabulary = description["model"]["vocab"]
    vocabulary |= {f"unused{number}": number for number in range(len(vocabulary), size)}
    return description


def _json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=None if path.name == "tokenizer.json" else 1) + "\n")

"""Files of a shape with random weights, in the form that both servers read, written once and used again.

The folder is that of a sentence-transformers model: config, weights, tokenizer, `modules.json` and a pooling. MiniLM
has its real weights in a package, and nothing is written for it.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.machine import ROOT
from benchmarks.ours import random_model
from benchmarks.published.rows import Row, model_name
from benchmarks.workloads import MINILM, minilm_folder

MODELS = ROOT / "build" / "published"
ST = "sentence_transformers.models."
POOLINGS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "lasttoken": "pooling_mode_lasttoken"}
MODULES = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
"""What a text goes through, and the folder of each."""
SPECIAL = {f"{role}_token": f"[{role.upper()}]" for role in ("cls", "sep", "pad", "unk", "mask")}


def folder_of(row: Row) -> Path:
    """Gives the folder of a row's model. Writes its files where they are not there yet."""
    if row.model == MINILM:
        return minilm_folder()
    name = model_name(row.model)
    folder = MODELS / f"{name}-{row.layers or 'all'}-layers-{row.dtype}-{row.max_tokens}" / name
    if not (folder / "modules.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write(row.model, folder, dtype=row.dtype, max_tokens=row.max_tokens, layers=row.layers)
    return folder


def write(model: str, folder: Path, *, dtype: str, max_tokens: int, layers: int = 0) -> None:
    """Writes all files of a random model; `modules.json` last, so that a folder with it is whole.

    `layers`: as many, whatever its shape says; 0 for those of its shape.
    """
    made = random_model(model, getattr(torch, dtype), layers)
    made.config.architectures, made.config.dtype = [type(made.encoder).__name__], dtype
    made.config.save_pretrained(folder)
    tensors = {name: tensor.contiguous() for name, tensor in made.encoder.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _json(folder / "tokenizer.json", _filled(json.loads(made.tokenizer), made.config.vocab_size))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_tokens} | SPECIAL
    _json(folder / "tokenizer_config.json", tokenizer)
    _json(folder / "sentence_bert_config.json", {"max_seq_length": max_tokens, "do_lower_case": False})
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {key: name == made.pooling for name, key in POOLINGS.items()}
    _json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": made.config.hidden_size} | modes)
    (folder / "2_Normalize").mkdir(exist_ok=True)
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

"""Folders with random weights of a published shape, in sentence-transformers' form: every peer can load the same ones.

The vocabulary and the tokenizer's files are MiniLM's: the size of a table that is only looked up changes no speed.
Needs torch and transformers, nothing of the worker.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, BertConfig, PretrainedConfig, Qwen3Config

from benchmarks.roofline import Shape, shape
from benchmarks.workloads import MAX_TOKENS, minilm_folder

GAIN = 1.4
"""The standard deviation of a linear layer's output for an input of unit size. At the usual one, about 0.6, the first
token's vector hardly depends on the text, so all cosines would be near 1 even between different texts."""
VOCABULARY, SEED = 30_522, 1
FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
MODULES = [
    {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
    for number, (path, kind) in enumerate(
        {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}.items()
    )
]
"""The entries of modules.json."""


def config_of(sizes: Shape) -> PretrainedConfig:
    """Makes the config of a shape: BERT's, or Qwen3's where the shape is causal."""
    values: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "intermediate_size": sizes.inner,
        "initializer_range": GAIN * sizes.hidden**-0.5,
        "max_position_embeddings": MAX_TOKENS,
        "pad_token_id": 0,
    }
    if not sizes.causal:
        return BertConfig(**values)
    heads = {"num_key_value_heads": sizes.kv_heads, "head_dim": sizes.head, "tie_word_embeddings": True}
    return Qwen3Config(**values | heads | {"rms_norm_eps": 1e-6, "bos_token_id": None, "eos_token_id": 102})


def write(model: str, folder: Path) -> Path:
    """Writes float32 weights of `random:SHAPE`, and modules that pool its last token where it is causal, else [CLS]."""
    sizes = shape(model)
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        AutoModel.from_config(config_of(sizes), dtype=torch.float32).save_pretrained(folder)
    for name in FILES:
        shutil.copy(minilm_folder() / name, folder / name)
    pooling = {"word_embedding_dimension": sizes.hidden, "pooling_mode_mean_tokens": False}
    pooling["pooling_mode_lasttoken" if sizes.causal else "pooling_mode_cls_token"] = True
    _write(folder / "modules.json", MODULES)
    _write(folder / "1_Pooling" / "config.json", pooling)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": MAX_TOKENS, "do_lower_case": False})
    return folder


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1))

"""Models of a known shape with seeded random weights, for tests and for measuring only.

`tiny-FAMILY` is initialised widely (0.2): at the usual 0.02 an engine that mixed all sequences would still score a
cosine of 0.9998. Its tokenizer has one token a word "w0", "w1", ... so that a text's length can be chosen exactly;
other words fall apart into characters.
"""

import string
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, PretrainedConfig
from transformers import __version__ as installed

from gpu_worker.models.repository import ModelRefused, Recipe
from gpu_worker.models.tokenizer import TokenizerFile, finish
from gpu_worker.placement import Placement

SEED = 20_260_101
SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4, "eos": 3, "bos": 2}
TINY = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 640,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
DECODER = {"num_key_value_heads": 2, "head_dim": 16, "bos_token_id": 2, "eos_token_id": 3}
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]
GEMMA = {"sliding_window": 16, "query_pre_attn_scalar": 16, "layer_types": SLIDING}
BIDIRECTIONAL = {"is_causal": False}

# name -> (model type, pooling, what its config says beside the type's defaults)
ALL_SHAPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "tiny-bert": ("bert", "mean", TINY),
    "tiny-roberta": ("roberta", "mean", TINY | {"pad_token_id": 1}),
    "tiny-xlm-roberta": ("xlm-roberta", "cls", TINY | {"pad_token_id": 1}),
    "tiny-electra": ("electra", "cls", TINY | {"embedding_size": 32}),
    "tiny-distilbert": (
        "distilbert",
        "cls",
        {"vocab_size": 1000, "dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 128, "initializer_range": 0.2}
        | {"max_position_embeddings": 640, "pad_token_id": 0},
    ),
    "tiny-mpnet": ("mpnet", "mean", TINY | {"pad_token_id": 1}),
    "tiny-deberta-v2": (
        "deberta-v2",
        "mean",
        TINY
        | {"relative_attention": True, "pos_att_type": "p2c|c2p", "share_att_key": True, "position_buckets": 16}
        | {"norm_rel_ebd": "layer_norm", "position_biased_input": False},
    ),
    "tiny-nomic-bert": ("nomic_bert", "mean", TINY),
    "tiny-gte": ("gte", "cls", TINY),
    "tiny-jina-v3": ("jina_embeddings_v3", "mean", TINY | {"pad_token_id": 1}),
    "tiny-eurobert": ("eurobert", "mean", TINY | DECODER | {"mask_token_id": 4}),
    "tiny-modernbert": (
        "modernbert",
        "mean",
        TINY | {"local_attention": 16, "global_attn_every_n_layers": 3, "cls_token_id": 2, "sep_token_id": 3},
    ),
    "tiny-qwen2": ("qwen2", "lasttoken", TINY | DECODER),
    "tiny-qwen3": ("qwen3", "lasttoken", TINY | DECODER),
    "tiny-llama": ("llama", "lasttoken", TINY | DECODER),
    "tiny-mistral": ("mistral", "lasttoken", TINY | DECODER | {"sliding_window": 16}),
    "tiny-gemma2": ("gemma2", "mean", TINY | DECODER | GEMMA),
    "tiny-gemma3": ("gemma3_text", "mean", TINY | DECODER | GEMMA),
    "tiny-embeddinggemma": ("gemma3_text", "mean", TINY | DECODER | GEMMA | {"use_bidirectional_attention": True}),
    "tiny-qwen2-bidirectional": ("qwen2", "mean", TINY | DECODER | BIDIRECTIONAL),
    "tiny-qwen3-bidirectional": ("qwen3", "mean", TINY | DECODER | BIDIRECTIONAL),
    "tiny-llama-bidirectional": ("llama", "mean", TINY | DECODER | BIDIRECTIONAL),
    "tiny-mistral-bidirectional": ("mistral", "mean", TINY | DECODER | BIDIRECTIONAL | {"sliding_window": 16}),
    "bge-base-en": ("bert", "cls", {"vocab_size": 30522, "pad_token_id": 0}),
    "multilingual-e5-base": (
        "xlm-roberta",
        "mean",
        {"vocab_size": 250002, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    ),
    "xlm-roberta-large": (
        "xlm-roberta",
        "cls",
        {"vocab_size": 250002, "max_position_embeddings": 8194, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
        | {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
    ),
}
SHAPES = {name: shape for name, shape in ALL_SHAPES.items() if shape[0] in CONFIG_MAPPING}
"""Those whose model type the installed transformers has; GTE came after 5.17."""
NAMES = {name.lower(): name for name in ALL_SHAPES} | {"tiny": "tiny-bert", "xlm-r-large": "xlm-roberta-large"}


def shape_of(name: str) -> tuple[str, PretrainedConfig, Recipe]:
    """The model type, config and recipe of a named shape. Raises ModelRefused for what is not known."""
    known = NAMES.get(name.lower())
    if known is None:
        raise ModelRefused(f"random:{name} is not known; there are {', '.join(sorted(SHAPES))}")
    kind, pooling, values = ALL_SHAPES[known]
    if known not in SHAPES:
        raise ModelRefused(f"random:{name}: transformers {installed} has no model type {kind}")
    recipe = Recipe(
        pooling=pooling,
        normalize=True,
        prompts={"query": "w1 w2 w3 ", "document": ""},
        notice="random weights: for tests and measuring only, its vectors mean nothing",
    )
    return kind, AutoConfig.for_model(kind, **values), recipe


def build(config: PretrainedConfig, placement: Placement) -> nn.Module:
    """The trunk with seeded random weights, made straight on the device."""
    with torch.random.fork_rng(devices=[placement.device] if placement.device.type == "cuda" else []):
        torch.manual_seed(SEED)
        with torch.device(placement.device):
            model = AutoModel.from_config(config, dtype=placement.dtype, attn_implementation="eager")
    assert isinstance(model, nn.Module)
    return model


def tokenizer(vocabulary: int) -> TokenizerFile:
    """A WordPiece tokenizer: special tokens, characters, then words "w0", "w1", ... up to the vocabulary's size."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    characters = string.digits + string.ascii_lowercase + string.punctuation
    entries = special + [prefix + character for prefix in ("", "##") for character in characters]
    entries += [f"w{number}" for number in range(min(vocabulary - len(entries), 30_000))]
    vocab = {entry: number for number, entry in enumerate(entries)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    description = {
        "version": "1.0",
        "added_tokens": [{"id": vocab[name], "content": name} | flags for name in special],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": _template(vocab),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
        | {"max_input_chars_per_word": 100, "vocab": vocab},
    }
    return finish(description, SPECIAL)


def _template(vocab: dict[str, int]) -> dict[str, Any]:
    """[CLS] text [SEP], and a second text with a [SEP] of its own."""
    first, last = ({"SpecialToken": {"id": name, "type_id": 0}} for name in ("[CLS]", "[SEP]"))
    texts = [{"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB")]
    ends = {name: {"id": name, "ids": [vocab[name]], "tokens": [name]} for name in ("[CLS]", "[SEP]")}
    return {
        "type": "TemplateProcessing",
        "single": [first, texts[0], last],
        "pair": [first, texts[0], last, texts[1], last],
        "special_tokens": ends,
    }

"""Models of a known shape with seeded random weights, for tests and for measuring only.

`tiny-FAMILY` is initialised widely (0.2): at the usual 0.02 an engine that mixed all sequences would still score a
cosine of 0.9998. Its tokenizer has one token for each word "w0", "w1", ..., so that a text's length can be chosen
exactly; other words are split into characters.
"""

import string
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig, PreTrainedModel
from transformers import __version__ as installed

from gpu_worker.device.placement import Placement
from gpu_worker.repository import weights
from gpu_worker.repository.recipe import WeightsOf
from gpu_worker.repository.tokenizer import TokenizerFile, finish
from harness.random_models.shapes import ALL_SHAPES, HEADED, Heads, pooled

SEED = 20_260_101
SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4, "eos": 3, "bos": 2}
MOST_WORDS = 100_000
"""Most words of a tokenizer: enough for the largest vocabulary, of which the worker wants a quarter to be tokens."""
SHAPES = {name: shape for name, shape in ALL_SHAPES.items() if shape[0] in CONFIG_MAPPING}
"""Shapes whose model type the installed transformers has; GTE came after 5.17."""
NAMES = {name.lower(): name for name in [*ALL_SHAPES, *HEADED]}
NAMES |= {"tiny": "tiny-bert", "xlm-r-large": "xlm-roberta-large"}


def shape_of(name: str) -> tuple[PretrainedConfig, Heads]:
    """Makes the config of a named shape, and finds its heads. Raises ValueError for an unknown name."""
    full_name = NAMES.get(name.lower())
    if full_name is None:
        raise ValueError(f"{name} is not known; there are {', '.join(known_names())}")
    shape, heads = HEADED.get(full_name, (full_name, None))
    kind, pooling, values = ALL_SHAPES[shape]
    if shape not in SHAPES:
        raise ValueError(f"{name}: transformers {installed} has no model type {kind}")
    config = AutoConfig.for_model(kind, **values)
    if heads is None:
        return config, pooled(pooling, config.hidden_size)
    if heads.labels:
        config.num_labels = len(heads.labels)
        config.id2label = dict(enumerate(heads.labels))
        config.label2id = {label: number for number, label in enumerate(heads.labels)}
    return config, heads


def known_names() -> list[str]:
    """All names that `shape_of` knows, sorted."""
    return sorted([*SHAPES, *HEADED])


def with_layers(config: PretrainedConfig, layers: int) -> PretrainedConfig:
    """Changes a config to its first `layers` layers."""
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    return config


def build(config: PretrainedConfig, weights_of: WeightsOf, placement: Placement) -> PreTrainedModel:
    """Makes the transformers class with seeded random weights, directly on the device."""
    with torch.random.fork_rng(devices=[placement.device] if placement.device.type == "cuda" else []):
        torch.manual_seed(SEED)
        with torch.device(placement.device):
            model = weights.from_config(config, weights_of, placement.dtype)
    assert isinstance(model, PreTrainedModel)
    return model


def tokenizer(vocabulary: int) -> TokenizerFile:
    """Makes a WordPiece tokenizer: special tokens, characters, then words "w0", "w1", ... up to `vocabulary` tokens."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    characters = string.digits + string.ascii_lowercase + string.punctuation
    entries = special + [prefix + character for prefix in ("", "##") for character in characters]
    entries += [f"w{number}" for number in range(min(vocabulary - len(entries), MOST_WORDS))]
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
    """Makes the frame of special tokens: [CLS] text [SEP], and a second text with a [SEP] of its own."""
    first, last = ({"SpecialToken": {"id": name, "type_id": 0}} for name in ("[CLS]", "[SEP]"))
    texts = [{"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB")]
    ends = {name: {"id": name, "ids": [vocab[name]], "tokens": [name]} for name in ("[CLS]", "[SEP]")}
    return {
        "type": "TemplateProcessing",
        "single": [first, texts[0], last],
        "pair": [first, texts[0], last, texts[1], {"SpecialToken": {"id": "[SEP]", "type_id": 1}}],
        "special_tokens": ends,
    }

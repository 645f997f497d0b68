"""A tiny ColQwen2 with random weights, as transformers saves it, and its processor without images."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, ColQwen2Config, ColQwen2ForRetrieval, ColQwen2Processor, PreTrainedTokenizerFast

from harness.random_models.miniature import widen
from harness.random_models.shapes import DECODER, TINY
from support.tiny import write_json

WIDTH, VOCABULARY = 16, 400
QUERIES = ["a quiet harbour?", " \n two  lines,\nand {text} \n", "", "boats and harbours " * 9, "é<|endoftext|>7"]
ROTARY = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 2, 2]}
VISION = {
    "qwen2_vl": {"embed_dim": 16, "hidden_size": 64},
    "qwen2_5_vl": {"hidden_size": 16, "intermediate_size": 16, "out_hidden_size": 64},
}
"""The towers of images by the model type of `vlm_config`."""


class QueryProcessor(ColQwen2Processor):
    """transformers' processor, which needs Pillow and torchvision only for images."""

    def check_argument_for_proper_class(self, *_: Any) -> Any:
        """Takes None for the processor of images."""


def write_colqwen2(folder: Path, kind: str = "qwen2_vl", *, framed: bool = False, prefix: str = "") -> Path:
    """`framed`: the tokenizer puts special tokens around a text. `prefix`: that of queries, "" for the processor's."""
    torch.manual_seed(0)
    texts = TINY | DECODER | {"vocab_size": VOCABULARY, "rope_parameters": ROTARY}
    vision = {"depth": 1, "num_heads": 2, "patch_size": 4} | VISION[kind]
    whole = AutoConfig.for_model(kind, text_config=texts, vision_config=vision)
    model = ColQwen2ForRetrieval(ColQwen2Config(vlm_config=whole, embedding_dim=WIDTH)).eval()
    widen(model, 0.2)
    torch.nn.init.normal_(model.embedding_proj_layer.bias)
    model.save_pretrained(folder)
    _tokenizer(framed).save_pretrained(folder)
    settings = {"query_prefix": prefix} if prefix else {}
    return write_json(folder, processor_config={"processor_class": "ColQwen2Processor"} | settings)


def expected_rows(folder: Path, queries: list[str], prefix: str = "") -> list[np.ndarray]:
    """Rows [L, WIDTH] of queries, by transformers' model and processor, in one padded batch."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    inputs = QueryProcessor(None, tokenizer, query_prefix=prefix)(text=queries)
    with torch.inference_mode():
        rows = ColQwen2ForRetrieval.from_pretrained(folder).eval()(**inputs).embeddings
    return [text[mask.bool()].numpy() for text, mask in zip(rows, inputs["attention_mask"], strict=True)]


def _tokenizer(framed: bool) -> PreTrainedTokenizerFast:
    """Byte-level BPE, as Qwen2's."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet, special = pre_tokenizers.ByteLevel.alphabet(), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet)
    made.train_from_iterator([*QUERIES, "Query: "] * 9, trainer)
    if framed:
        around = [(token, made.token_to_id(token)) for token in special[1:]]
        single = "<|im_start|> $A <|im_end|>"
        made.post_processor = processors.TemplateProcessing(single=single, special_tokens=around)
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<|endoftext|>", eos_token="<|im_end|>")

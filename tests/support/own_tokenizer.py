"""The tokenizer class that transformers has for a model type, with a vocabulary of a few hundred pieces."""

import inspect
import string
from typing import Any

import transformers
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

WORDS, LONGEST = 120, 256
MARKS = ("", "##", "\u2581", "\u0120")
"""Marks before a piece: WordPiece's within a word, SentencePiece's and byte-level BPE's at the start of a word."""
END = "</w>"
"""Mark that the oldest BPE writes after a word."""


def class_of(kind: str) -> type[Any] | None:
    """Finds the tokenizer class of a model type; None where it has none, or one without the tokenizers library."""
    name = TOKENIZER_MAPPING_NAMES.get(kind)
    tokenizer_class = getattr(transformers, name, None) if isinstance(name, str) else None
    backed = tokenizer_class is not None and issubclass(tokenizer_class, transformers.PreTrainedTokenizerFast)
    return tokenizer_class if backed and tokenizer_class is not transformers.PreTrainedTokenizerFast else None


def own_tokenizer(kind: str) -> Any:
    """Makes a tokenizer of the model type's class, with a padding token.

    Raises what the class raises, and LookupError where there is no class.
    """
    tokenizer_class = class_of(kind)
    if tokenizer_class is None:
        raise LookupError(f"transformers has no tokenizer class of its own for {kind}")
    tokenizer = _make(tokenizer_class, _pieces(tokenizer_class))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    tokenizer.model_max_length = LONGEST
    return tokenizer


def _make(tokenizer_class: type[Any], pieces: list[str]) -> Any:
    merges: dict[str, Any] = {"merges": []} if "merges" in inspect.signature(tokenizer_class).parameters else {}
    try:
        return tokenizer_class(vocab={piece: number for number, piece in enumerate(pieces)}, **merges)
    except (AttributeError, TypeError, UnboundLocalError, ValueError):  # classes that need a score for each piece
        return tokenizer_class(vocab=[(piece, -1.0) for piece in pieces], **merges)


def _pieces(tokenizer_class: type[Any]) -> list[str]:
    """Lists special tokens of the class, as its signature names them, then characters and words."""
    parameters = inspect.signature(tokenizer_class).parameters.values()
    named = [
        str(parameter.default) for parameter in parameters if parameter.name.endswith("_token") and parameter.default
    ]
    special = named or ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    characters = string.digits + string.ascii_letters + string.punctuation
    pieces = [mark + character for mark in MARKS for character in ("", *characters)] + [*characters, END]
    pieces += [f"{mark}w{number}" for mark in MARKS for number in range(WORDS)]
    absent = ("", str(inspect.Parameter.empty))
    return list(dict.fromkeys(piece for piece in (*special, *pieces) if piece not in absent))

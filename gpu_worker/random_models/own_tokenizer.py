"""The tokenizer class that transformers has for a model type, with a vocabulary of a few hundred pieces."""

import inspect
import string
from typing import Any

import transformers
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

WORDS, LONGEST = 120, 256
MARKS = ("", "##", "\u2581", "\u0120")
"""What vocabularies write before a piece: WordPiece within a word, SentencePiece and byte-level BPE at its start."""
END = "</w>"
"""What the oldest BPE writes after a word."""


def class_of(kind: str) -> type[Any] | None:
    """None where transformers has no class of its own for a model type, or one without the tokenizers library."""
    name = TOKENIZER_MAPPING_NAMES.get(kind)
    found = getattr(transformers, name, None) if isinstance(name, str) else None
    backed = found is not None and issubclass(found, transformers.PreTrainedTokenizerFast)
    return found if backed and found is not transformers.PreTrainedTokenizerFast else None


def own_tokenizer(kind: str) -> Any:
    """A tokenizer of that class, that pads. Raises what the class raises, and LookupError where there is none."""
    found = class_of(kind)
    if found is None:
        raise LookupError(f"transformers has no tokenizer class of its own for {kind}")
    made = _made(found, _pieces(found))
    if made.pad_token is None:
        made.pad_token = made.eos_token or made.unk_token
    made.model_max_length = LONGEST
    return made


def _made(found: type[Any], pieces: list[str]) -> Any:
    merges: dict[str, Any] = {"merges": []} if "merges" in inspect.signature(found).parameters else {}
    try:
        return found(vocab={piece: number for number, piece in enumerate(pieces)}, **merges)
    except (AttributeError, TypeError, UnboundLocalError, ValueError):  # of those that want a score for each
        return found(vocab=[(piece, -1.0) for piece in pieces], **merges)


def _pieces(found: type[Any]) -> list[str]:
    """Special tokens of the class first, as its signature names them; then characters and words."""
    parameters = inspect.signature(found).parameters.values()
    named = [str(each.default) for each in parameters if each.name.endswith("_token") and each.default]
    special = named or ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    characters = string.digits + string.ascii_letters + string.punctuation
    pieces = [mark + character for mark in MARKS for character in ("", *characters)] + [*characters, END]
    pieces += [f"{mark}w{number}" for mark in MARKS for number in range(WORDS)]
    return list(dict.fromkeys(each for each in (*special, *pieces) if each and each != str(inspect.Parameter.empty)))

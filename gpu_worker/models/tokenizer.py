"""What the frontend needs for tokenising, made once at load. The only place of the worker that knows tokenizers."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_worker.models.repository import ModelRefused

ROLES = ("cls", "sep", "pad", "mask", "unk", "bos", "eos")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFile:
    """A tokenizer.json (format of the `tokenizers` library) without truncation and padding, and its special ids."""

    content: bytes
    special_tokens: dict[str, int]


def export(folder: Path, lowercase: bool) -> TokenizerFile:
    """The tokenizer that transformers reads from `folder`. Raises ModelRefused.

    `lowercase`: sentence-transformers' own do_lower_case, which lowers a text before the tokenizer sees it.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        description = json.loads(tokenizer.backend_tokenizer.to_str())
    except Exception as error:  # any of many: whatever it is, there is no tokenizer
        raise ModelRefused(f"{folder}: the tokenizer cannot be loaded: {_first_line(error)}") from error
    ids = {role: getattr(tokenizer, f"{role}_token_id", None) for role in ROLES}
    special = {role: identity for role, identity in ids.items() if identity is not None}
    return finish(description, special, lowercase)


def finish(description: dict[str, Any], special: dict[str, int], lowercase: bool = False) -> TokenizerFile:
    """Switches off what the frontend decides itself, and serialises."""
    description = description | {"truncation": None, "padding": None}
    if lowercase:
        steps = [{"type": "Lowercase"}]
        if description.get("normalizer"):
            steps.append(description["normalizer"])
        description["normalizer"] = {"type": "Sequence", "normalizers": steps}
    return TokenizerFile(content=json.dumps(description).encode(), special_tokens=special)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]

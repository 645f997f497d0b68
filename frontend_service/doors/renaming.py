"""What our names are called at another door. Standard library only."""

import re
from collections.abc import Callable

Names = tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...]
"""Patterns and what takes their place, one after the other."""


def renamed(text: str, names: Names) -> str:
    """A field, or a message that names some."""
    for ours, theirs in names:
        text = re.sub(ours, theirs, text)
    return text

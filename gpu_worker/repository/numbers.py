"""Checks of numbers in JSON files. A text, a truth value or a fraction in place of a whole number refuses the model;
sentence-transformers fails on it at the first text."""

from typing import Any

from shared.errors import ModelRefused


def whole(said: Any, where: str, least: int = 1) -> int:
    """Checks a whole number from a JSON file; `where` names the file and the key. Raises ModelRefused."""
    if not isinstance(said, int) or isinstance(said, bool) or said < least:
        raise ModelRefused(f"{where} {said!r} must be a whole number, at least {least}")
    return said

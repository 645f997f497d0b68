"""Numbers in JSON files. A text, a truth value or a fraction where a whole number belongs is refused, as
sentence-transformers does at its first text."""

from typing import Any

from shared.errors import ModelRefused


def whole(said: Any, where: str, least: int = 1) -> int:
    """A whole number that a JSON file says; `where` names the file and the key. Raises ModelRefused."""
    if not isinstance(said, int) or isinstance(said, bool) or said < least:
        raise ModelRefused(f"{where} {said!r} must be a whole number, at least {least}")
    return said

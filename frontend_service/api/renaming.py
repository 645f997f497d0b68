"""Our field names in errors, replaced by those of another API. Knows no API."""

import re
from collections.abc import Callable

from shared.errors import printable

Names = tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...]
"""Patterns of our names, each with its replacement; they are applied in order."""
QUOTED = re.compile(r"""(?<!\w)(['"])(?:\\.|(?!\1).)*\1(?!\w)""", re.DOTALL)
"""A caller's own words in a message, as `repr` quotes them; no apostrophe within a word."""
PLACE = re.compile("\0")
"""The character that stands for a quotation while names are replaced."""


def renamed(text: str, names: Names) -> str:
    """A field, or a message that mentions fields, as it leaves: with its names replaced, and what no terminal prints.

    Quotations stay as they are.
    """
    text = printable(text)
    quotations = [quotation[0] for quotation in QUOTED.finditer(text)]
    text = QUOTED.sub("\0", text)
    for pattern, replacement in names:
        text = re.sub(pattern, replacement, text)
    return PLACE.sub(lambda _: quotations.pop(0), text) if quotations else text

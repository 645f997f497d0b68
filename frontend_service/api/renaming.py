"""Names of ours as another door has them. Standard library only."""

import re
from collections.abc import Callable

Names = tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...]
"""Patterns and what takes their place, one after the other."""
QUOTED = re.compile(r"""(?<!\w)(['"])(?:\\.|(?!\1).)*\1(?!\w)""", re.DOTALL)
"""A caller's own words in a message, as `repr` quotes them; no apostrophe within a word."""
PLACE = re.compile("\0")


def renamed(text: str, names: Names) -> str:
    """A field, or a message that names some. What it quotes stays as it is."""
    quoted = [quote[0] for quote in QUOTED.finditer(text)]
    text = QUOTED.sub("\0", text)
    for ours, theirs in names:
        text = re.sub(ours, theirs, text)
    return PLACE.sub(lambda _: quoted.pop(0), text) if quoted else text

"""Windows over a document that is longer than its model reads at once: long late chunking (arXiv:2409.04701).

The paper cuts windows at fixed places, so a chunk may be pooled of rows that two passes gave. Here every span is pooled
of one window, which has it as a whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Span = tuple[int, int]
"""The first token, and the one behind the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The tokens `start` to `stop` - 1 of a document, and the numbers of the spans that are pooled of them."""

    start: int
    stop: int
    spans: tuple[int, ...]


def windows(spans: Sequence[Span], document: Span, room: int, overlap: int) -> Iterator[Window]:
    """Windows of at most `room` tokens over the tokens `document`, such that every span is in one of them.

    Spans are taken by their starts, and no span is longer than `room`. A window begins `overlap` tokens before the
    first span that the windows before it do not have, or later where that span would not fit; the first window begins
    with the document if that span fits.
    """
    first, end = document
    order = sorted(range(len(spans)), key=spans.__getitem__)
    place = 0
    while place < len(order):
        start, stop = spans[order[place]]
        begin = first if not place and stop - first <= room else max(first, start - overlap, stop - room)
        window_stop = min(begin + room, end)
        after = place
        while after < len(order) and spans[order[after]][1] <= window_stop:
            after += 1
        yield Window(start=begin, stop=window_stop, spans=tuple(order[place:after]))
        place = after

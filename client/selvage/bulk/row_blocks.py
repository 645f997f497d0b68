"""Some thousand rows at a time: what is read, answered in any order, and written in order. Knows no services."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from selvage.bulk.plan import RowPlan
from selvage.bulk.rows import BadRow, Entry, Row
from selvage.messages.inputs import ENTRY_LETTERS

LETTERS = 16 * 1024 * 1024
"""Of all that the rows of a window hold, unless one alone has more."""


@dataclass(slots=True, kw_only=True, eq=False)
class Window:
    """Neighbours in one shard. `rows` have texts, in the order of the input; `values` are what came of each.

    `left`: rows that have no outcome yet; whoever owns the window counts them. `share`: how full it is, 1 at most.
    """

    shard: int
    rows: list[Row] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    empty: int = 0
    values: dict[str, list[Any]] = field(default_factory=dict)
    refused: dict[int, BadRow] = field(default_factory=dict)
    left: int = 0
    share: float = 1.0

    def put(self, places: Sequence[int], values: dict[str, Sequence[Any]]) -> None:
        """What came of rows at these places."""
        for name, found in values.items():
            column = self.values.setdefault(name, [None] * len(self.rows))
            for place, value in zip(places, found, strict=True):
                column[place] = value

    def refuse(self, place: int, reason: str, *, has_id: bool) -> None:
        """The service does not take the text at a place."""
        row = self.rows[place]
        self.refused[place] = BadRow(
            number=row.number, path=row.path, line=row.line, reason=reason, id=row.beside[0] if has_id else None
        )

    def bad_rows(self) -> list[BadRow]:
        """All of them, in the order of the input."""
        return sorted([*self.bad, *self.refused.values()], key=lambda each: each.number)

    def good(self) -> tuple[list[Row], dict[str, list[Any]]]:
        """Rows that have values, and their values."""
        if not self.refused:
            return self.rows, self.values
        places = [place for place in range(len(self.rows)) if place not in self.refused]
        return [self.rows[place] for place in places], {
            name: [column[place] for place in places] for name, column in self.values.items()
        }


def windows(entries: Iterable[Entry], plan: RowPlan, *, most: int, keep_empty: bool) -> Iterator[Window]:
    """Of `most` entries each; `keep_empty`: texts without a letter are embedded too."""
    window: Window | None = None
    count = letters = 0
    for each in entries:
        shard = plan.shard(each.number)
        if window is not None and (window.shard != shard or count >= most or letters >= LETTERS):
            yield window
            window = None
        if window is None:
            window, count, letters = Window(shard=shard), 0, 0
        count += 1
        if isinstance(each, BadRow):
            window.bad.append(each)
            letters += _letters(each.id) + len(each.reason)
        elif keep_empty or (each.text and not each.text.isspace()):
            window.rows.append(each)
            letters += len(each.text) + _letters(each.beside)
        else:
            window.empty += 1
        window.share = min(1.0, max(count / most, letters / LETTERS))
    if window is not None:
        yield window


def _letters(value: Any) -> int:
    """That a value holds, however deep; what is no string counts as ENTRY_LETTERS."""
    total, open_ = 0, [value]
    while open_:  # no recursion: JSON may be nested deeper than Python's stack
        each = open_.pop()
        if isinstance(each, str | bytes):
            total += len(each)
        elif isinstance(each, dict):
            open_ += [*each, *each.values()]
        elif isinstance(each, list | tuple):
            open_ += each
        else:
            total += ENTRY_LETTERS
    return total


def batches(window: Window, *, most: int, letters: int) -> Iterator[list[int]]:
    """Places of rows that are sent together: so many rows and letters at most, unless one row alone has more.

    The longest first, so that neighbours in a batch are alike.
    """
    sizes = [len(row.text) + ENTRY_LETTERS for row in window.rows]
    places = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
    batch: list[int] = []
    room = letters
    for place in places:
        if batch and (len(batch) >= most or sizes[place] > room):
            yield batch
            batch, room = [], letters
        batch.append(place)
        room -= sizes[place]
    if batch:
        yield batch

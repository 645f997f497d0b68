"""Blocks of some thousand rows, which are read together, embedded in any order, and written in order of the input.

Knows no services.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from selvage.bulk.plan import RowPlan
from selvage.bulk.rows import BadRow, Entry, Row
from selvage.messages.inputs import ENTRY_LETTERS

LETTERS = 16 * 1024 * 1024
"""Most letters of all rows of a block together, unless a single row has more."""


@dataclass(slots=True, kw_only=True, eq=False)
class RowBlock:
    """Neighbouring rows of one shard.

    - `rows`: those with texts, in the order of the input. `empty`: how many others there are, which are left out.
    - `values`: the results of `rows`, by name.
    - `bad`: rows that could not be read. `refused`: those that could not be embedded, by their place in `rows`.
    - `unanswered`: how many of `rows` have no outcome yet; the batch queue counts them.
    - `fullness`: from 0 to 1.
    """

    shard: int
    rows: list[Row] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    empty: int = 0
    values: dict[str, list[Any]] = field(default_factory=dict)
    refused: dict[int, BadRow] = field(default_factory=dict)
    unanswered: int = 0
    fullness: float = 1.0

    def set_values(self, places: Sequence[int], values: dict[str, Sequence[Any]]) -> None:
        """Stores the values of the rows at these places."""
        for name, new_values in values.items():
            column = self.values.setdefault(name, [None] * len(self.rows))
            for place, value in zip(places, new_values, strict=True):
                column[place] = value

    def refuse_row(self, place: int, reason: str, *, has_id: bool) -> None:
        """Makes the row at a place a bad one, because the service does not take its text."""
        row = self.rows[place]
        self.refused[place] = BadRow(
            number=row.number, path=row.path, line=row.line, reason=reason, id=row.extra[0] if has_id else None
        )

    def bad_rows(self) -> list[BadRow]:
        """All rows that could not be read or embedded, in the order of the input."""
        return sorted([*self.bad, *self.refused.values()], key=lambda row: row.number)

    def good_rows(self) -> tuple[list[Row], dict[str, list[Any]]]:
        """The rows that have values, and their values."""
        if not self.refused:
            return self.rows, self.values
        places = [place for place in range(len(self.rows)) if place not in self.refused]
        return [self.rows[place] for place in places], {
            name: [column[place] for place in places] for name, column in self.values.items()
        }


def row_blocks(entries: Iterable[Entry], plan: RowPlan, *, most: int, keep_empty: bool) -> Iterator[RowBlock]:
    """Groups rows into blocks of at most `most`; `keep_empty`: texts without a letter are embedded too."""
    block: RowBlock | None = None
    count = letters = 0
    for entry in entries:
        shard = plan.shard_of(entry.number)
        if block is not None and (block.shard != shard or count >= most or letters >= LETTERS):
            yield block
            block = None
        if block is None:
            block, count, letters = RowBlock(shard=shard), 0, 0
        count += 1
        if isinstance(entry, BadRow):
            block.bad.append(entry)
            letters += _letters_in(entry.id) + len(entry.reason)
        elif keep_empty or (entry.text and not entry.text.isspace()):
            block.rows.append(entry)
            letters += len(entry.text) + _letters_in(entry.extra)
        else:
            block.empty += 1
        block.fullness = min(1.0, max(count / most, letters / LETTERS))
    if block is not None:
        yield block


def _letters_in(value: Any) -> int:
    """Number of letters in a value, however deep it is nested; a value that is no string counts as ENTRY_LETTERS."""
    total, open_values = 0, [value]
    while open_values:  # no recursion: JSON may be nested deeper than Python's stack
        value = open_values.pop()
        if isinstance(value, str | bytes):
            total += len(value)
        elif isinstance(value, dict):
            open_values += [*value, *value.values()]
        elif isinstance(value, list | tuple):
            open_values += value
        else:
            total += ENTRY_LETTERS
    return total


def batches(block: RowBlock, *, most: int, letters: int) -> Iterator[list[int]]:
    """Yields the places of the rows of each batch: at most `most` rows and `letters`, unless a single row has more.

    The longest come first, so that texts of a batch are alike in length.
    """
    sizes = [len(row.text) + ENTRY_LETTERS for row in block.rows]
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

"""Rows as they are read: with a text, or bad, with the reason. Knows no files."""

from dataclasses import dataclass
from typing import Any

from selvage.bulk.failures import Failed

TEXT_LETTERS = 3 * 1024 * 1024
"""Most letters of a text. In UTF-8 a longer one may not fit into a message of the service, which has 16 MiB at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Names of the input's columns that are used: the text, the id ("": there is none), and those that are copied."""

    text: str
    id: str
    copied: tuple[str, ...]

    @property
    def extra(self) -> tuple[str, ...]:
        """All but the text: the id, where there is one, and the copied columns."""
        return (*([self.id] if self.id else []), *self.copied)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row with a text.

    `number`: its place in the whole input, from 0. `line`: its line in its file, from 1; for Parquet, its row there.
    `extra`: the values of the columns `Columns.extra`, as the file has them.
    """

    number: int
    path: str
    line: int
    text: str
    extra: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """A row that gets no vector, with the reason."""

    number: int
    path: str
    line: int
    reason: str
    id: Any = None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


Entry = Row | BadRow


def bad_row(number: int, path: str, line: int, reason: str, id_: Any = None) -> BadRow:
    """A row that cannot be read."""
    return BadRow(number=number, path=path, line=line, reason=reason, id=id_)


def checked_row(columns: Columns, number: int, path: str, line: int, text: Any, extra: tuple[Any, ...]) -> Entry:
    """A row if its text can be sent and its extra values can be written, else a bad one. A null text is empty."""
    reason = _fault(columns.text, "" if text is None else text)
    for name, value in zip(columns.extra, extra, strict=True):
        reason = reason or (_fault(name, value) if isinstance(value, str) else "")
    if reason:
        return bad_row(number, path, line, reason, extra[0] if columns.id else None)
    return Row(number=number, path=path, line=line, text=text or "", extra=extra)


def _fault(name: str, value: Any) -> str:
    """Why the value of a column cannot be used; empty where it can."""
    if not isinstance(value, str):
        return f"column {name!r} is of type {type(value).__name__}, not a string"
    if len(value) > TEXT_LETTERS:
        return f"column {name!r} has {len(value):,} letters; {TEXT_LETTERS:,} can be sent"
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            # `surrogateescape` reads bytes that are no UTF-8 as this range; other surrogates come from JSON's \ud800.
            escaped = 0xDC80 <= ord(value[error.start]) <= 0xDCFF
            fault = "is not valid UTF-8" if escaped else "has half of a character"
            return f"column {name!r} {fault} at {error.start}"
    return ""


def column_index(name: str, names: list[str], path: str, columns: Columns) -> int:
    """Index of the column `name` in `names`. Raises Failed where there is none, or more than one."""
    flag = "--text-column" if name == columns.text else "--id-column" if name == columns.id else "--keep"
    if names.count(name) != 1:
        there = f"there are {', '.join(names)}" if name not in names else "it is there twice"
        raise Failed(f"{flag}: {path} has no one column {name!r}; {there}")
    return names.index(name)

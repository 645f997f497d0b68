"""What is read: rows with their texts, and rows that have none. Knows no files."""

from dataclasses import dataclass
from typing import Any

from selvage.bulk.failures import Failed

TEXT_LETTERS = 12 * 1024 * 1024
"""Longer texts are reported here: in UTF-8 they may not fit into a message of the service, which is 64 MiB at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which of the input are used; `id` may be "": there is none."""

    text: str
    id: str
    kept: tuple[str, ...]

    @property
    def beside(self) -> tuple[str, ...]:
        """All but the text's."""
        return (*([self.id] if self.id else []), *self.kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`number`: its place in the whole input, from 0. `line`: of its file, from 1; of Parquet, its row there.

    `beside`: what `Columns.beside` names, as the file has it.
    """

    number: int
    path: str
    line: int
    text: str
    beside: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """A row without a vector."""

    number: int
    path: str
    line: int
    reason: str
    id: Any = None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


Entry = Row | BadRow


def bad(number: int, path: str, line: int, reason: str, id_: Any = None) -> BadRow:
    """One that cannot be read."""
    return BadRow(number=number, path=path, line=line, reason=reason, id=id_)


def entry(columns: Columns, number: int, path: str, line: int, text: Any, beside: tuple[Any, ...]) -> Entry:
    """A row if its text can be sent and what is beside it can be written. No text at all (null) is an empty one."""
    reason = _fault(columns.text, "" if text is None else text)
    for name, value in zip(columns.beside, beside, strict=True):
        reason = reason or (_fault(name, value) if isinstance(value, str) else "")
    if reason:
        return bad(number, path, line, reason, beside[0] if columns.id else None)
    return Row(number=number, path=path, line=line, text=text or "", beside=beside)


def _fault(name: str, value: Any) -> str:
    if not isinstance(value, str):
        return f"column {name!r} is of type {type(value).__name__}, not a string"
    if len(value) > TEXT_LETTERS:
        return f"column {name!r} has {len(value):,} letters; {TEXT_LETTERS:,} can be sent"
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            # What `surrogateescape` reads of bytes that are no UTF-8 lies here; other halves come from JSON's \ud800.
            escaped = 0xDC80 <= ord(value[error.start]) <= 0xDCFF
            what = "is not valid UTF-8" if escaped else "has half of a character"
            return f"column {name!r} {what} at {error.start}"
    return ""


def column_index(name: str, names: list[str], path: str, columns: Columns) -> int:
    """Index of the column `name` in `names`. Raises Failed where there is none, or more than one."""
    flag = "--text-column" if name == columns.text else "--id-column" if name == columns.id else "--keep"
    if names.count(name) != 1:
        there = f"there are {', '.join(names)}" if name not in names else "it is there twice"
        raise Failed(f"{flag}: {path} has no one column {name!r}; {there}")
    return names.index(name)

"""Files -> rows, one after the other, as a stream. Rows that nobody wants are counted, not read."""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any, Protocol

from selvage.bulk.failures import Failed
from selvage.bulk.files import InputFile
from selvage.bulk.plan import RowPlan
from selvage.bulk.rows import Columns, Entry, bad, column_index, entry

LINE_BYTES = 64 * 1024 * 1024
"""Of a line at most; the rest of a longer one is skipped."""
MARK = b"\xef\xbb\xbf"
UNREADABLE = (OSError, EOFError, zlib.error)
"""What a file raises that is damaged; gzip says EOFError of one that is cut off."""
PASSED = 65_536
"""Rows that nobody wants, between two words of how far the reading is."""
Place = tuple[int, str, int]
"""Of a row: its number in the input, its file, its line."""
Parse = Callable[[Columns, Place, str], Entry]


class Opened(Protocol):
    """One file that is being read."""

    def rows(self, plan: RowPlan, first: int) -> Iterator[Entry | int]:
        """Its rows that `plan` wants, where its first is row `first` of the input; at the end how many it has. While it
        passes others, 0 now and then."""

    @property
    def position(self) -> int:
        """Bytes of the file that have been read."""


class InputReading:
    """All rows of all files that a plan wants; `total` rows have been met, wanted or not."""

    def __init__(
        self, files: list[InputFile], columns: Columns, plan: RowPlan, passed: Callable[[], None] = lambda: None
    ) -> None:
        """`passed` is called now and then while rows are passed that nobody wants."""
        self._files, self._columns, self._plan, self._passed = files, columns, plan, passed
        self._opened: Opened | None = None
        self._before = 0
        self.total = 0
        self.size = sum(each.size for each in files)

    @property
    def position(self) -> int:
        """Bytes of `size` that have been read."""
        return self._before + (self._opened.position if self._opened is not None else 0)

    @property
    def share(self) -> float:
        """Of the input that has been read, from 0 to 1."""
        return self.position / max(self.size, 1)

    def __iter__(self) -> Iterator[Entry]:
        """Raises Failed where a file cannot be read on."""
        for file in self._files:
            with _raw(file) as raw:
                try:
                    self._opened = opened = _open(file, raw, self._columns)
                    for each in opened.rows(self._plan, self.total):
                        if isinstance(each, int):
                            self.total += each
                            if not each:
                                self._passed()
                        else:
                            yield each
                except UNREADABLE as error:
                    raise Failed(f"{file.path}: cannot be read: {error}") from error
            self._opened, self._before = None, self._before + file.size


class _Lines:
    """A row a line. `parse` makes an entry of a line without its end."""

    def __init__(self, file: InputFile, raw: IO[bytes], columns: Columns, parse: Parse) -> None:
        self._file, self._raw, self._columns, self._parse = file, raw, columns, parse

    @property
    def position(self) -> int:
        return self._raw.tell()

    def rows(self, plan: RowPlan, first: int) -> Iterator[Entry | int]:
        count = 0
        for line, found in enumerate(_lines(_unzipped(self._file, self._raw)), 1):
            number = first + count
            if found is not None and self._parse is _from_json and found.isspace():
                continue
            count += 1
            if not plan.wants(number):
                if not count % PASSED:
                    yield 0
                continue
            place = (number, self._file.path, line)
            if found is None:
                yield bad(*place, f"the line is longer than {LINE_BYTES:,} bytes")
                continue
            try:
                text = found.rstrip(b"\r\n").removeprefix(MARK if line == 1 else b"").decode()
            except UnicodeDecodeError as error:
                yield bad(*place, f"the line is not valid UTF-8 at byte {error.start}")
                continue
            yield self._parse(self._columns, place, text)
        yield count


class _Cells:
    """CSV with a header. A record may span lines."""

    def __init__(self, file: InputFile, raw: IO[bytes], columns: Columns) -> None:
        self._file, self._raw, self._columns = file, raw, columns
        csv.field_size_limit(LINE_BYTES)
        stream: Any = _unzipped(file, raw)
        # Kept, or it would be closed at the last line, and the file with it.
        self._decoded = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
        self._ended = False
        lines = chain(self._decoded, self._end())
        self._reader = csv.reader(lines, delimiter="\t" if file.format == "tsv" else ",")
        header = self._guarded()
        self._places = [
            column_index(name, header or [], file.path, columns) for name in (columns.text, *columns.beside)
        ]
        self._width = len(header or [])

    @property
    def position(self) -> int:
        return self._raw.tell()

    def rows(self, plan: RowPlan, first: int) -> Iterator[Entry | int]:
        count = 0
        while True:
            line = self._reader.line_num + 1
            cells = self._guarded()
            if cells is None:
                yield count
                return
            if not cells:  # an empty line
                continue
            number, count = first + count, count + 1
            if plan.wants(number):
                yield self._entry(number, line, cells)
            elif not count % PASSED:
                yield 0

    def _entry(self, number: int, line: int, cells: list[str]) -> Entry:
        if len(cells) != self._width:
            told = f"it has {len(cells)} columns, the header has {self._width}"
            return bad(number, self._file.path, line, told)
        text, *beside = (cells[place] for place in self._places)
        return entry(self._columns, number, self._file.path, line, text, tuple(beside))

    def _guarded(self) -> list[str] | None:
        """The next record. Raises Failed where it has no end: nobody knows where the next one begins."""
        line = self._reader.line_num + 1
        try:
            cells = next(self._reader, None)
        except csv.Error as error:
            told = f"{self._file.path}:{self._reader.line_num}: {error}; is a quotation mark left open?"
            raise Failed(told) from error
        if self._ended and cells:
            raise Failed(f"{self._file.path}:{line}: a quotation mark is left open, up to the end of the file")
        return None if self._ended else cells

    def _end(self) -> Iterator[str]:
        """An empty line behind the last one. The reader gives it alone, unless it lies inside quotation marks."""
        self._ended = True
        yield "\n"


def _from_json(columns: Columns, place: Place, line: str) -> Entry:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        return bad(*place, f"it is not JSON: {error}")
    if not isinstance(found, dict):
        return bad(*place, f"it is of type {type(found).__name__}, not an object")
    missing = [name for name in (columns.text, *columns.beside) if name not in found]
    if missing:
        told = f"it has no {missing[0]!r}; there are {', '.join(sorted(found)[:20])}"
        return bad(*place, told, found.get(columns.id) if columns.id else None)
    return entry(columns, *place, found[columns.text], tuple(found[name] for name in columns.beside))


def _from_text(columns: Columns, place: Place, line: str) -> Entry:
    return entry(columns, *place, line, ())


def _open(file: InputFile, raw: IO[bytes], columns: Columns) -> Opened:
    if file.format == "parquet":
        from selvage.bulk.parquet_input import ParquetInput

        return ParquetInput(file, raw, columns)
    if file.format == "jsonl":
        return _Lines(file, raw, columns, _from_json)
    if file.format == "text":
        if columns.beside:
            flag = "--id-column" if columns.id else "--keep"
            raise Failed(f"{flag}: {file.path} is plain text and has no columns; rows are told by their number")
        return _Lines(file, raw, columns, _from_text)
    return _Cells(file, raw, columns)


def check(files: list[InputFile], columns: Columns) -> None:
    """Raises Failed now for what would end the command hours later: a file or a column that is not there."""
    for file in files:
        with _raw(file) as raw:
            try:
                _open(file, raw, columns)
            except UNREADABLE as error:
                raise Failed(f"{file.path}: cannot be read: {error}") from error


def _raw(file: InputFile) -> IO[bytes]:
    try:
        return Path(file.path).open("rb")
    except OSError as error:
        raise Failed(f"INPUT: {file.path} cannot be opened: {error.strerror}") from error


def _unzipped(file: InputFile, raw: IO[bytes]) -> Any:
    return io.BufferedReader(gzip.GzipFile(fileobj=raw)) if file.zipped else raw


def _lines(stream: Any) -> Iterator[bytes | None]:
    """Lines with their ends; None for one that is too long."""
    while found := stream.readline(LINE_BYTES):
        if len(found) < LINE_BYTES or found.endswith(b"\n"):
            yield found
            continue
        while (rest := stream.readline(LINE_BYTES)) and not rest.endswith(b"\n"):
            pass
        yield None

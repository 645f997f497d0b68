"""Input files -> rows, one after the other, as a stream. Rows that the plan does not want are counted, not parsed."""

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
from selvage.bulk.rows import Columns, Entry, bad_row, checked_row, column_index

LINE_BYTES = 64 * 1024 * 1024
"""Most bytes of a line; a longer one is a bad row, and its rest is skipped."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UNREADABLE = (OSError, EOFError, zlib.error)
"""Errors that a damaged file raises; gzip raises EOFError where a file is cut off."""
ROWS_BETWEEN_REPORTS = 65_536
"""Rows that are skipped between two reports of how far the reading is."""
Place = tuple[int, str, int]
"""The place of a row: its number in the input, its file, its line."""
Parse = Callable[[Columns, Place, str], Entry]
"""Makes a row of a line without its end."""


class OpenInput(Protocol):
    """A file that is being read."""

    def rows(self, plan: RowPlan, first: int) -> Iterator[Entry | int]:
        """Yields the file's rows that `plan` wants, where its first row is row `first` of the input.

        Numbers say how many rows were passed: 0 now and then while rows are skipped, and at the end all of the file.
        """

    @property
    def position(self) -> int:
        """Number of bytes of the file that have been read."""


class InputReader:
    """Iterates over the rows of all files that a plan wants. `total`: the rows of the files that were read to the end.

    `size`: bytes of all files.
    """

    def __init__(
        self, files: list[InputFile], columns: Columns, plan: RowPlan, report: Callable[[], None] = lambda: None
    ) -> None:
        """`report` is called now and then while rows are skipped."""
        self._files, self._columns, self._plan, self._report = files, columns, plan, report
        self._input: OpenInput | None = None
        self._before = 0
        self.total = 0
        self.size = sum(file.size for file in files)

    @property
    def position(self) -> int:
        """Number of bytes, out of `size`, that have been read."""
        return self._before + (self._input.position if self._input is not None else 0)

    @property
    def fraction_read(self) -> float:
        """How much of the input has been read, from 0 to 1."""
        return self.position / max(self.size, 1)

    def __iter__(self) -> Iterator[Entry]:
        """Yields the rows of one file after the other. Raises Failed where a file cannot be read further."""
        for file in self._files:
            with _raw(file) as raw:
                try:
                    self._input = _open(file, raw, self._columns)
                    for entry in self._input.rows(self._plan, self.total):
                        if isinstance(entry, int):
                            self.total += entry
                            if not entry:
                                self._report()
                        else:
                            yield entry
                except UNREADABLE as error:
                    raise Failed(f"{file.path}: cannot be read: {error}") from error
            self._input, self._before = None, self._before + file.size


class _LineInput:
    """A file with a row a line: JSON Lines or plain text."""

    def __init__(self, file: InputFile, raw: IO[bytes], columns: Columns, parse: Parse) -> None:
        self._file, self._raw, self._columns, self._parse = file, raw, columns, parse

    @property
    def position(self) -> int:
        return self._raw.tell()

    def rows(self, plan: RowPlan, first: int) -> Iterator[Entry | int]:
        count = 0
        for line_number, line in enumerate(_lines(_unzipped(self._file, self._raw)), 1):
            number = first + count
            if line is not None and self._parse is _from_json and line.isspace():
                continue
            count += 1
            if not plan.wants(number):
                if not count % ROWS_BETWEEN_REPORTS:
                    yield 0
                continue
            place = (number, self._file.path, line_number)
            if line is None:
                yield bad_row(*place, f"the line is longer than {LINE_BYTES:,} bytes")
                continue
            try:
                text = line.rstrip(b"\r\n").removeprefix(BYTE_ORDER_MARK if line_number == 1 else b"").decode()
            except UnicodeDecodeError as error:
                yield bad_row(*place, f"the line is not valid UTF-8 at byte {error.start}")
                continue
            yield self._parse(self._columns, place, text)
        yield count


class _CsvInput:
    """A CSV or TSV file with a header. A record may span lines."""

    def __init__(self, file: InputFile, raw: IO[bytes], columns: Columns) -> None:
        self._file, self._raw, self._columns = file, raw, columns
        csv.field_size_limit(LINE_BYTES)
        stream: Any = _unzipped(file, raw)
        # An attribute, because a wrapper that is collected after the last line would close the file.
        self._decoded = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
        self._ended = False
        lines = chain(self._decoded, self._last_line())
        self._reader = csv.reader(lines, delimiter="\t" if file.format == "tsv" else ",")
        header = self._next_record()
        self._places = [column_index(name, header or [], file.path, columns) for name in (columns.text, *columns.extra)]
        self._width = len(header or [])

    @property
    def position(self) -> int:
        return self._raw.tell()

    def rows(self, plan: RowPlan, first: int) -> Iterator[Entry | int]:
        count = 0
        while True:
            line = self._reader.line_num + 1
            cells = self._next_record()
            if cells is None:
                yield count
                return
            if not cells:  # an empty line
                continue
            number, count = first + count, count + 1
            if plan.wants(number):
                yield self._row(number, line, cells)
            elif not count % ROWS_BETWEEN_REPORTS:
                yield 0

    def _row(self, number: int, line: int, cells: list[str]) -> Entry:
        if len(cells) != self._width:
            reason = f"it has {len(cells)} columns, the header has {self._width}"
            return bad_row(number, self._file.path, line, reason)
        text, *extra = (cells[place] for place in self._places)
        return checked_row(self._columns, number, self._file.path, line, text, tuple(extra))

    def _next_record(self) -> list[str] | None:
        """The next record, None at the end. Raises Failed where a record has no end: the next cannot be located."""
        line = self._reader.line_num + 1
        try:
            cells = next(self._reader, None)
        except csv.Error as error:
            fault = f"{self._file.path}:{self._reader.line_num}: {error}; is a quotation mark left open?"
            raise Failed(fault) from error
        if self._ended and cells:
            raise Failed(f"{self._file.path}:{line}: a quotation mark is left open, up to the end of the file")
        return None if self._ended else cells

    def _last_line(self) -> Iterator[str]:
        """Yields an empty line after the file's last one.

        The csv reader returns it as a record of its own, unless a quotation mark is left open before it.
        """
        self._ended = True
        yield "\n"


def _from_json(columns: Columns, place: Place, line: str) -> Entry:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return bad_row(*place, f"it is not JSON: {error}")
    if not isinstance(record, dict):
        return bad_row(*place, f"it is of type {type(record).__name__}, not an object")
    missing = [name for name in (columns.text, *columns.extra) if name not in record]
    if missing:
        reason = f"it has no {missing[0]!r}; there are {', '.join(sorted(record)[:20])}"
        return bad_row(*place, reason, record.get(columns.id) if columns.id else None)
    return checked_row(columns, *place, record[columns.text], tuple(record[name] for name in columns.extra))


def _from_text(columns: Columns, place: Place, line: str) -> Entry:
    return checked_row(columns, *place, line, ())


def _open(file: InputFile, raw: IO[bytes], columns: Columns) -> OpenInput:
    """Opens a file by its format. Raises Failed where it has not the columns."""
    if file.format == "parquet":
        from selvage.bulk.parquet_input import ParquetInput

        return ParquetInput(file, raw, columns)
    if file.format == "jsonl":
        return _LineInput(file, raw, columns, _from_json)
    if file.format == "text":
        if columns.extra:
            flag = "--id-column" if columns.id else "--keep"
            raise Failed(f"{flag}: {file.path} is plain text and has no columns; rows are told by their number")
        return _LineInput(file, raw, columns, _from_text)
    return _CsvInput(file, raw, columns)


def check_inputs(files: list[InputFile], columns: Columns) -> None:
    """Raises Failed for a file or a column that is missing, which would otherwise end the command hours later."""
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
    """Yields lines with their ends; None for a line that is too long."""
    while line := stream.readline(LINE_BYTES):
        if len(line) < LINE_BYTES or line.endswith(b"\n"):
            yield line
            continue
        while (rest := stream.readline(LINE_BYTES)) and not rest.endswith(b"\n"):
            pass
        yield None

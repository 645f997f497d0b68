"""Parquet -> rows, some at a time; groups of rows that nobody wants are not read. The one reader that needs pyarrow."""

from collections.abc import Iterator
from typing import IO, Any

from selvage.bulk.arrow import pyarrow
from selvage.bulk.failures import Failed
from selvage.bulk.files import InputFile
from selvage.bulk.parquet_footer import without_arrow
from selvage.bulk.plan import RowPlan
from selvage.bulk.rows import Columns, Entry, bad, column_index, entry

ROWS = 128
"""That are made Python's at a time: each may be megabytes."""
BUFFER = 1024 * 1024


class ParquetInput:
    """One file. Memory is that of some pages and of 128 rows, however large a group of rows is."""

    def __init__(self, file: InputFile, raw: IO[bytes], columns: Columns) -> None:
        """Raises Failed where it is no Parquet, has no such columns, or the text's holds no strings."""
        self._arrow, self._reader = pyarrow(f"reading {file.path}")
        self._file, self._raw, self._columns, self._done = file, raw, columns, 0
        try:
            self._parquet = self._reader.ParquetFile(raw, buffer_size=BUFFER, pre_buffer=False)
        except self._arrow.ArrowException as error:
            raise Failed(f"INPUT: {file.path} is no Parquet: {error}") from error
        self.schema = self._parquet.schema_arrow
        for name in (columns.text, *columns.beside):
            column_index(name, self.schema.names, file.path, columns)
        kind = self.schema.field(columns.text).type
        if not self._holds_strings(kind):
            raise Failed(f"--text-column: {columns.text!r} of {file.path} holds {kind}, not strings")

    @property
    def position(self) -> int:
        rows: int = self._parquet.metadata.num_rows
        return self._file.size * self._done // max(rows, 1)

    def rows(self, plan: RowPlan, first: int) -> Iterator[Entry | int]:
        for group in range(self._parquet.num_row_groups):
            size = self._parquet.metadata.row_group(group).num_rows
            if plan.wants_any(first + self._done, first + self._done + size):
                try:
                    yield from self._group(plan, first, group)
                except self._arrow.ArrowException as error:
                    told = f"{self._file.path}: group {group} of its rows cannot be read: {error}"
                    raise Failed(told) from error
            else:
                self._done += size
        yield self._done

    def _holds_strings(self, kind: Any) -> bool:
        """However Arrow lays them out. A column of nulls alone has no type: any string might stand there."""
        types = self._arrow.types
        kind = kind.value_type if types.is_dictionary(kind) else kind
        return any(
            holds(kind) for holds in (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
        )

    def _group(self, plan: RowPlan, first: int, group: int) -> Iterator[Entry | int]:
        names = (self._columns.text, *self._columns.beside)
        for columns in self._batches(group, names):
            start, self._done = self._done, self._done + len(columns[0])
            if not plan.wants_any(first + start, first + self._done):
                yield 0
                continue
            found = [self._values(column) for column in columns]
            for place, (text, *beside) in enumerate(zip(*found, strict=True), start):
                if plan.wants(first + place):
                    yield self._entry(first + place, place + 1, text, tuple(beside))

    def _batches(self, group: int, names: tuple[str, ...]) -> Iterator[list[Any]]:
        """The columns of these names, some rows at a time.

        Arrow refuses a dictionary as a whole where one of its strings is no UTF-8; value by value, that is one row's.
        """
        wanted, done = list(dict.fromkeys(names)), 0
        try:
            for batch in self._parquet.iter_batches(ROWS, row_groups=[group], columns=wanted, use_threads=False):
                done += len(batch)
                yield [batch.column(name) for name in names]
        except self._arrow.ArrowInvalid:
            kinds = {name: self.schema.field(name).type for name in wanted}
            if not any(map(self._arrow.types.is_dictionary, kinds.values())):
                raise
            metadata = without_arrow(self._raw, self._reader)
            plain = self._reader.ParquetFile(self._raw, metadata=metadata, buffer_size=BUFFER, pre_buffer=False)
            for batch in plain.iter_batches(ROWS, row_groups=[group], columns=wanted, use_threads=False):
                left = batch.slice(min(done, len(batch)))
                done -= len(batch) - len(left)
                if len(left):
                    yield [self._typed(left.column(name), kinds[name]) for name in names]

    def _typed(self, column: Any, kind: Any) -> Any:
        """As Arrow has it, but the values of a dictionary one by one."""
        return column if self._arrow.types.is_dictionary(kind) else column.cast(kind)

    def _entry(self, number: int, line: int, text: Any, beside: tuple[Any, ...]) -> Entry:
        for name, value in zip((self._columns.text, *self._columns.beside), (text, *beside), strict=True):
            if isinstance(value, ValueError):
                what = f"cannot be read: {value}"
                if isinstance(value, UnicodeDecodeError):
                    what = f"is not valid UTF-8 at byte {value.start}"
                identity = beside[0] if self._columns.id and not isinstance(beside[0], ValueError) else None
                return bad(number, self._file.path, line, f"column {name!r} {what}", identity)
        return entry(self._columns, number, self._file.path, line, text, beside)

    def _values(self, column: Any) -> list[Any]:
        """As Python has them, Arrow's own for times that it has not, and errors in the place of what cannot be read."""
        try:
            found: list[Any] = column.to_pylist()
        except (ValueError, OverflowError):
            return [self._value(scalar) for scalar in column]
        return found

    def _value(self, scalar: Any) -> Any:
        try:
            return scalar.as_py()
        except UnicodeDecodeError as error:
            return error
        except (ValueError, OverflowError) as error:  # finer than a microsecond, or beyond Python's years
            return scalar if self._arrow.types.is_temporal(scalar.type) else ValueError(str(error))

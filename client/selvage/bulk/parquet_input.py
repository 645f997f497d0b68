"""Parquet files -> rows, some at a time; row groups without a wanted row are not read. The one reader with pyarrow."""

from collections.abc import Iterator
from typing import IO, Any

from selvage.bulk.arrow import pyarrow
from selvage.bulk.failures import Failed
from selvage.bulk.files import InputFile
from selvage.bulk.parquet_footer import without_arrow_types
from selvage.bulk.plan import RowPlan
from selvage.bulk.rows import Columns, Entry, bad_row, checked_row, column_index

ROWS = 128
"""Rows that become Python objects at a time: each may have megabytes."""
BUFFER = 1024 * 1024


class ParquetInput:
    """A Parquet file that is being read. It needs memory for some pages and 128 rows, however large a row group is."""

    def __init__(self, file: InputFile, raw: IO[bytes], columns: Columns) -> None:
        """Raises Failed where the file is no Parquet, lacks a column, or has a text column that holds no strings."""
        self._arrow, self._parquet = pyarrow(f"reading {file.path}")
        self._file, self._raw, self._columns, self._done = file, raw, columns, 0
        try:
            self._reader = self._parquet.ParquetFile(raw, buffer_size=BUFFER, pre_buffer=False)
        except self._arrow.ArrowException as error:
            raise Failed(f"INPUT: {file.path} is no Parquet: {error}") from error
        self.schema = self._reader.schema_arrow
        for name in (columns.text, *columns.extra):
            column_index(name, self.schema.names, file.path, columns)
        kind = self.schema.field(columns.text).type
        if not self._holds_strings(kind):
            raise Failed(f"--text-column: {columns.text!r} of {file.path} holds {kind}, not strings")

    @property
    def position(self) -> int:
        rows: int = self._reader.metadata.num_rows
        return self._file.size * self._done // max(rows, 1)

    def rows(self, plan: RowPlan, first: int) -> Iterator[Entry | int]:
        for group in range(self._reader.num_row_groups):
            size = self._reader.metadata.row_group(group).num_rows
            if plan.wants_any(first + self._done, first + self._done + size):
                try:
                    yield from self._rows_of_group(plan, first, group)
                except self._arrow.ArrowException as error:
                    fault = f"{self._file.path}: group {group} of its rows cannot be read: {error}"
                    raise Failed(fault) from error
            else:
                self._done += size
        yield self._done

    def _holds_strings(self, kind: Any) -> bool:
        """Whether a type is one of Arrow's for strings, or that of nulls alone, which any file of strings may have."""
        types = self._arrow.types
        kind = kind.value_type if types.is_dictionary(kind) else kind
        return any(
            holds(kind) for holds in (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
        )

    def _rows_of_group(self, plan: RowPlan, first: int, group: int) -> Iterator[Entry | int]:
        names = (self._columns.text, *self._columns.extra)
        for columns in self._batches(group, names):
            start, self._done = self._done, self._done + len(columns[0])
            if not plan.wants_any(first + start, first + self._done):
                yield 0
                continue
            values = [self._values(column) for column in columns]
            for place, (text, *extra) in enumerate(zip(*values, strict=True), start):
                if plan.wants(first + place):
                    yield self._row(first + place, place + 1, text, tuple(extra))

    def _batches(self, group: int, names: tuple[str, ...]) -> Iterator[list[Any]]:
        """Yields the columns of these names, some rows at a time.

        Arrow refuses a whole dictionary where one of its strings is no UTF-8. The group is then read as plain values,
        so that only the row with that string is bad.
        """
        wanted, done = list(dict.fromkeys(names)), 0
        try:
            for batch in self._reader.iter_batches(ROWS, row_groups=[group], columns=wanted, use_threads=False):
                done += len(batch)
                yield [batch.column(name) for name in names]
        except self._arrow.ArrowInvalid:
            kinds = {name: self.schema.field(name).type for name in wanted}
            if not any(map(self._arrow.types.is_dictionary, kinds.values())):
                raise
            metadata = without_arrow_types(self._raw, self._parquet)
            plain = self._parquet.ParquetFile(self._raw, metadata=metadata, buffer_size=BUFFER, pre_buffer=False)
            for batch in plain.iter_batches(ROWS, row_groups=[group], columns=wanted, use_threads=False):
                left = batch.slice(min(done, len(batch)))
                done -= len(batch) - len(left)
                if len(left):
                    yield [self._typed(left.column(name), kinds[name]) for name in names]

    def _typed(self, column: Any, kind: Any) -> Any:
        """A column of plain values, cast to its type in the file unless that is a dictionary."""
        return column if self._arrow.types.is_dictionary(kind) else column.cast(kind)

    def _row(self, number: int, line: int, text: Any, extra: tuple[Any, ...]) -> Entry:
        """A row of values, or a bad one where a value is an error."""
        for name, value in zip((self._columns.text, *self._columns.extra), (text, *extra), strict=True):
            if isinstance(value, ValueError):
                fault = f"cannot be read: {value}"
                if isinstance(value, UnicodeDecodeError):
                    fault = f"is not valid UTF-8 at byte {value.start}"
                row_id = extra[0] if self._columns.id and not isinstance(extra[0], ValueError) else None
                return bad_row(number, self._file.path, line, f"column {name!r} {fault}", row_id)
        return checked_row(self._columns, number, self._file.path, line, text, extra)

    def _values(self, column: Any) -> list[Any]:
        """A column's values, each as `_value` returns it."""
        try:
            values: list[Any] = column.to_pylist()
        except (ValueError, OverflowError):
            return [self._value(scalar) for scalar in column]
        return values

    def _value(self, scalar: Any) -> Any:
        """A value as Python has it, as Arrow has it for a time that Python cannot hold, or an error."""
        try:
            return scalar.as_py()
        except UnicodeDecodeError as error:
            return error
        except (ValueError, OverflowError) as error:  # finer than a microsecond, or beyond Python's years
            return scalar if self._arrow.types.is_temporal(scalar.type) else ValueError(str(error))

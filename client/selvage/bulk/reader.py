"""Input files -> tables of rows, in the order of the input, as a stream: pyarrow's readers, one file after the other.

Shard k holds the rows k x R to (k + 1) x R of the input. Of n commands that share the work, command i writes the shards
k with k % n == i. So all of them together write what one would write alone.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from selvage.bulk import Failed
from selvage.bulk.files import InputFile

BLOCK_BYTES = 4 * 1024 * 1024
"""Bytes of text formats that are parsed at a time: most bytes of a line, too. About 35 of them are in memory."""
BUFFER_BYTES = 1024 * 1024
"""Bytes of a column of Parquet that are read at a time."""
ROWS = 256
"""Rows that are decoded of Parquet, or put into a table, at a time: each may have megabytes."""
TABLE_BYTES = 16 * 1024 * 1024
"""Most bytes of a table, unless a few rows have more."""
NUMBERS = "(row)"
"""The column of tables with the number of each row in the whole input, from 0."""
NO_DELIMITER = "\x1f"
"""Separates columns of plain text, which has one: a control character that texts do not have."""


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

    @property
    def all(self) -> list[str]:
        """Each name once, as a column may be the text and copied too."""
        return list(dict.fromkeys((self.text, *self.extra)))

    def flag_of(self, name: str) -> str:
        """The flag that names a column."""
        return "--text-column" if name == self.text else "--id-column" if name == self.id else "--keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """The rows of one command. `rows_per_shard` is R, `index` i and `count` n; `finished` shards are not read again."""

    rows_per_shard: int
    index: int = 0
    count: int = 1
    finished: AbstractSet[int] = field(default_factory=frozenset)

    def ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yields the starts and ends of the runs of rows, of those before `stop`, that the command embeds."""
        while start < stop:
            shard = start // self.rows_per_shard
            end = min(stop, (shard + 1) * self.rows_per_shard)
            if shard % self.count == self.index and shard not in self.finished:
                yield start, end
            start = end


class Reader:
    """Reads the rows of all files that a plan wants.

    `size`: bytes of all files; `total`: the rows that were read or passed so far. `show`: called now and then while
    rows are read past.
    """

    def __init__(
        self,
        files: Sequence[InputFile],
        columns: Columns,
        schema: Any,
        plan: RowPlan,
        show: Callable[[], None] = lambda: None,
    ) -> None:
        """`schema`: of `check_inputs`."""
        self._files, self._columns, self._schema, self._plan, self._show = files, columns, schema, plan, show
        self._starts: list[int] = []
        self._done_bytes = 0
        self._position: Callable[[], int] = lambda: 0
        self.total = 0
        self.size = sum(file.size for file in files)

    @property
    def fraction_read(self) -> float:
        """How much of the input has been read, from 0 to 1."""
        return (self._done_bytes + self._position()) / max(self.size, 1)

    def place_of(self, row: int) -> tuple[str, int]:
        """The file of a row that was read, and the row's number there, from 1."""
        file = bisect_right(self._starts, row) - 1
        return self._files[file].path, row - self._starts[file] + 1

    def tables(self, most: int) -> Iterator[Any]:
        """Yields pyarrow.Tables of neighbouring wanted rows: the column NUMBERS, and those of the schema.

        A table has at most `most` rows, or fewer where they have more than TABLE_BYTES; it may span files.
        Raises Failed where a file cannot be read further.
        """
        import pyarrow as pa

        gathered: list[Any] = []
        rows = size = 0
        for piece in self._pieces(min(ROWS, most)):
            if gathered and (rows + len(piece) > most or size + piece.nbytes > TABLE_BYTES):
                yield pa.Table.from_batches(gathered)
                gathered, rows, size = [], 0, 0
            gathered.append(piece)
            rows, size = rows + len(piece), size + piece.nbytes
        if gathered:
            yield pa.Table.from_batches(gathered)

    def _pieces(self, most: int) -> Iterator[Any]:
        """Yields pyarrow.RecordBatches of at most `most` wanted rows."""
        for file in self._files:
            self._starts.append(self.total)
            with _opened(file, lambda: self.total - self._starts[-1]) as raw:
                self._position = raw.tell
                for rows, batch in self._batches(file, raw):
                    first, self.total = self.total, self.total + rows
                    pieces = [] if batch is None else self._wanted(batch, first, most)
                    yield from pieces
                    if not pieces:
                        self._show()
            self._position, self._done_bytes = (lambda: 0), self._done_bytes + file.size

    def _wanted(self, batch: Any, first: int, most: int) -> list[Any]:
        """The wanted rows of a batch, cast to the schema, with their numbers. `first`: that of the first row."""
        import pyarrow as pa

        pieces = []
        for start, stop in self._plan.ranges(first, first + len(batch)):
            for row in range(start, stop, most):
                piece = batch.slice(row - first, min(most, stop - row))
                numbers = pa.array(range(row, row + len(piece)), pa.int64())
                columns = [piece.column(name).cast(self._schema.field(name).type) for name in self._schema.names]
                pieces.append(pa.RecordBatch.from_arrays([numbers, *columns], names=[NUMBERS, *self._schema.names]))
        return pieces

    def _batches(self, file: InputFile, raw: Any) -> Iterator[tuple[int, Any]]:
        """Yields numbers of rows, and the rows, None where no row is wanted."""
        if file.format == "parquet":
            yield from self._parquet_batches(file, raw)
        else:
            for batch in _text_reader(file, raw, self._columns, self._schema) or ():
                yield len(batch), batch

    def _parquet_batches(self, file: InputFile, raw: Any) -> Iterator[tuple[int, Any]]:
        """Reads groups of rows some rows at a time; a group without a wanted row is not read."""
        reader = _parquet_file(raw)
        start, done = self.total, 0
        self._position = lambda: file.size * done // max(reader.metadata.num_rows, 1)
        for group in range(reader.num_row_groups):
            rows = reader.metadata.row_group(group).num_rows
            if not any(self._plan.ranges(start + done, start + done + rows)):
                done += rows
                yield rows, None
                continue
            for batch in reader.iter_batches(ROWS, row_groups=[group], columns=self._columns.all, use_threads=False):
                done += len(batch)
                yield len(batch), batch


def check_inputs(files: Iterable[InputFile], columns: Columns) -> Any:
    """The pyarrow.Schema of the columns that are used, the same for all files.

    Text columns are strings; other ones have their types in the input, or one that fits all files. Raises Failed for a
    file or a column that is missing or cannot be used, which would otherwise end the command hours later.
    """
    import pyarrow as pa

    merged: Any = None
    for file in files:
        with _opened(file) as raw:
            schema = _schema_of(file, raw, columns)
        if schema is None:
            continue
        if columns.id and pa.types.is_floating(schema.field(columns.id).type):
            kind = schema.field(columns.id).type
            fault = f"--id-column: {columns.id!r} of {file.path} is read as {kind}, which would round ids"
            raise Failed(f"{fault}: they must be strings, or whole numbers below 2^63")
        try:
            merged = schema if merged is None else pa.unify_schemas([merged, schema], promote_options="permissive")
        except pa.ArrowException as error:
            raise Failed(
                f"--keep or --id-column: {file.path} has other types than the files before: {error}"
            ) from error
    if merged is None:
        merged = pa.schema([(name, pa.string()) for name in columns.all])
    return pa.schema([(field.name, pa.string() if pa.types.is_null(field.type) else field.type) for field in merged])


def _schema_of(file: InputFile, raw: Any, columns: Columns) -> Any:
    """The types of a file's columns that are used; None for an empty file of text."""
    import pyarrow as pa

    if file.format == "text" and columns.extra:
        flag = columns.flag_of(columns.extra[0])
        raise Failed(f"{flag}: {file.path} is plain text and has no columns; rows are told by their number")
    if file.format == "parquet":
        schema = _parquet_file(raw).schema_arrow
    elif (reader := _text_reader(file, raw, columns)) is None:
        return None
    else:
        schema = reader.schema
    for name in columns.all:
        if schema.names.count(name) != 1:
            there = f"there are {', '.join(schema.names)}" if name not in schema.names else "it is there twice"
            raise Failed(f"{columns.flag_of(name)}: {file.path} has no one column {name!r}; {there}")
    types = {name: _output_type(file, schema.field(name).type) for name in columns.all}
    kind = types[columns.text]
    if not any(holds(kind) for holds in (pa.types.is_string, pa.types.is_large_string, pa.types.is_null)):
        raise Failed(f"--text-column: {columns.text!r} of {file.path} holds {kind}, not strings")
    types[columns.text] = pa.string()
    for name, kind in types.items():
        try:
            pa.array([], kind).take(pa.array([], pa.int64()))
        except pa.ArrowNotImplementedError as error:
            fault = f"{columns.flag_of(name)}: {name!r} of {file.path} is of a type that cannot be copied"
            raise Failed(f"{fault}, {kind}") from error
    return pa.schema(list(types.items()))


def _output_type(file: InputFile, kind: Any) -> Any:
    """The type of a column of the output, by that in a file: that of the values of a dictionary, or what a view views.

    Strings of JSON that look like times are strings.
    """
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if file.format == "jsonl" and pa.types.is_timestamp(kind):
        return pa.string()
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)


def _parquet_file(raw: Any) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(raw, buffer_size=BUFFER_BYTES, pre_buffer=False)


def _text_reader(file: InputFile, raw: Any, columns: Columns, schema: Any = None) -> Any:
    """A pyarrow.RecordBatchReader of a file of text, None where it is empty.

    `schema`: the columns to read; None: all of them, to see which. Invalid UTF-8 is found when a text is used, so that
    it is the fault of one row.
    """
    import pyarrow as pa

    try:
        return _json_reader(file, raw, schema) if file.format == "jsonl" else _csv_reader(file, raw, columns, schema)
    except pa.ArrowInvalid as error:
        if "Empty JSON stream" in str(error) or "Empty CSV file" in str(error):
            return None
        raise


def _json_reader(file: InputFile, raw: Any, schema: Any) -> Any:
    import pyarrow.json

    return pyarrow.json.open_json(
        _unzipped(file, raw),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="ignore" if schema else "infer"
        ),
    )


def _csv_reader(file: InputFile, raw: Any, columns: Columns, schema: Any) -> Any:
    """A reader of CSV, TSV, or plain text, which is read as a CSV of one column without quotation marks."""
    import pyarrow as pa
    import pyarrow.csv

    names = [columns.text] if file.format == "text" else None
    delimiter = {"csv": ",", "tsv": "\t", "text": NO_DELIMITER}[file.format]
    quotes = {"quote_char": False, "ignore_empty_lines": False} if names else {"newlines_in_values": True}
    return pa.csv.open_csv(
        _unzipped(file, raw),
        read_options=pa.csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES, column_names=names),
        parse_options=pa.csv.ParseOptions(delimiter=delimiter, **quotes),
        convert_options=pa.csv.ConvertOptions(
            check_utf8=False,
            strings_can_be_null=False,
            column_types={name: pa.string() for name in columns.all},
            include_columns=columns.all if schema else [],
        ),
    )


def _unzipped(file: InputFile, raw: Any) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(raw, "gzip") if file.zipped else raw


@contextmanager
def _opened(file: InputFile, rows: Callable[[], int] = lambda: 0) -> Iterator[Any]:
    """The file, opened. Raises Failed, which names it and the rows before, where it cannot be opened or read."""
    import pyarrow as pa

    try:
        raw = pa.OSFile(file.path)
    except OSError as error:
        raise Failed(f"INPUT: {file.path} cannot be opened: {error}") from error
    try:
        with raw:
            yield raw
    except (pa.ArrowException, OSError, EOFError) as error:
        raise Failed(f"{file.path}: cannot be read after its row {rows():,}: {error}") from error

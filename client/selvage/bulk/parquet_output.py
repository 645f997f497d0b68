"""A shard as one Parquet file, with a row group for each block of rows.

Columns: `row` int64; the extra columns; `tokens` int32; `truncated`; `dense` as lists of fixed size, `dense_scales`;
`sparse_ids` and `sparse_weights` as lists; `multi_vector` as a list of lists of fixed size, `multi_vector_scales`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selvage.bulk.arrow import arrays, as_text, pyarrow
from selvage.bulk.drafts import Draft
from selvage.bulk.rows import Row
from selvage.results import Array


class ParquetShard:
    """The file of one shard. Extra columns have the types of `types`, or are strings."""

    def __init__(self, folder: Path, name: str, names: Sequence[str], types: Mapping[str, Any]) -> None:
        """`names`: those of the extra columns. Raises Failed where pyarrow is missing. All methods raise OSError."""
        self._arrow, self._parquet = pyarrow("--format parquet")
        self._names, self._types = names, types
        self._draft = Draft(folder / f"{name}.parquet")
        self._writer: Any = None

    @property
    def drafts(self) -> list[Draft]:
        return [self._draft]

    def add_rows(self, rows: Sequence[Row], columns: Mapping[str, Array]) -> None:
        """Writes rows, at least one, with the columns of `values.columns`."""
        table = self._table(rows, columns)
        if self._writer is None:
            plain = [name for name in table.column_names if name in ("row", *self._names)]
            self._writer = self._parquet.ParquetWriter(
                self._draft.stream,
                table.schema,
                compression=dict.fromkeys(plain, "zstd"),  # vectors do not get smaller
                use_dictionary=False,
            )
        self._writer.write_table(table)

    def finish(self) -> None:
        """Writes the file's end."""
        if self._writer is not None:
            self._writer.close()

    def discard(self) -> None:
        """Removes the file."""
        if self._writer is not None:
            self._writer.is_open = False  # or it would write the file's end to a closed stream when it is collected
        self._draft.discard()

    def _table(self, rows: Sequence[Row], columns: Mapping[str, Array]) -> Any:
        arrow = self._arrow
        table = {"row": arrow.array([row.number for row in rows], type=arrow.int64())}
        for place, name in enumerate(self._names):
            values = [row.extra[place] for row in rows]
            kind = self._types.get(name)
            table[name] = self._column(values, kind) if kind else arrow.array(map(_as_text, values), arrow.string())
        return arrow.table(table | arrays(columns))

    def _column(self, values: Sequence[Any], kind: Any) -> Any:
        try:
            return self._arrow.array(values, type=kind)
        except self._arrow.ArrowTypeError:  # an extension type that does not accept its own Python values, as bool8
            stored = self._arrow.array(values).cast(kind.storage_type)
            return self._arrow.ExtensionArray.from_storage(kind, stored)


def _as_text(value: Any) -> str | None:
    """A value without a type, as text formats have it, as text: strings as they are, times by `as_text`, else JSON."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, bool | int | float | list | dict):
        return as_text(value)
    text = json.dumps(value, ensure_ascii=False, default=as_text)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a character inside, which JSON can write and UTF-8 cannot
        return json.dumps(value, default=as_text)
    return text

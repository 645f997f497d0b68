"""A shard as one Parquet file, a group of rows a window.

`row` int64; what stands beside a row; `tokens` int32; `truncated`; `dense` as lists of fixed size, `dense_scales`;
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
    """The file of one shard. Columns beside a row have the types of `types`, or are strings."""

    def __init__(self, folder: Path, name: str, names: Sequence[str], types: Mapping[str, Any]) -> None:
        """Raises OSError, as all of it does, and Failed where there is no pyarrow."""
        self._arrow, self._parquet = pyarrow("--format parquet")
        self._names, self._types = names, types
        self._draft = Draft(folder / f"{name}.parquet")
        self._writer: Any = None

    @property
    def drafts(self) -> list[Draft]:
        return [self._draft]

    def add(self, rows: Sequence[Row], columns: Mapping[str, Array]) -> None:
        """Rows, at least one, with the columns of `values.columns`."""
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
        """Nothing more comes."""
        if self._writer is not None:
            self._writer.close()

    def discard(self) -> None:
        """Leaves nothing."""
        if self._writer is not None:
            self._writer.is_open = False  # or it writes its end when it is collected, to what is closed
        self._draft.discard()

    def _table(self, rows: Sequence[Row], columns: Mapping[str, Array]) -> Any:
        arrow = self._arrow
        found = {"row": arrow.array([row.number for row in rows], type=arrow.int64())}
        for place, name in enumerate(self._names):
            values = [row.beside[place] for row in rows]
            kind = self._types.get(name)
            found[name] = self._column(values, kind) if kind else arrow.array(map(_as_text, values), arrow.string())
        return arrow.table(found | arrays(columns))

    def _column(self, values: Sequence[Any], kind: Any) -> Any:
        try:
            return self._arrow.array(values, type=kind)
        except self._arrow.ArrowTypeError:  # an extension that does not take back what it gives, as bool8
            stored = self._arrow.array(values).cast(kind.storage_type)
            return self._arrow.ExtensionArray.from_storage(kind, stored)


def _as_text(value: Any) -> str | None:
    """Text formats have no types of their own: what is no string stays as JSON writes it; a time is its own text."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, bool | int | float | list | dict):
        return as_text(value)
    told = json.dumps(value, ensure_ascii=False, default=as_text)
    try:
        told.encode()
    except UnicodeEncodeError:  # half of a character inside: JSON can say that, UTF-8 cannot
        return json.dumps(value, default=as_text)
    return told

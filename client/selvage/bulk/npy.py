"""A shard as a .npy file for each column of numbers, and a .jsonl for the rest. Arrays grow block by block.

`part-000003.dense.npy` and so on, named as `values.columns` names them. Lengths are written as offsets, one more than
there are rows: the entries of row i are offsets[i] to offsets[i + 1]. `part-000003.rows.jsonl` has an object a row.
"""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.lib import format as npy_format

from selvage.bulk.arrow import as_text
from selvage.bulk.drafts import Draft
from selvage.bulk.rows import Row
from selvage.results import Array

JSON_COLUMNS = ("tokens", "truncated")
"""Columns that are written to the .jsonl."""


class NpyShard:
    """The files of one shard. All methods raise OSError."""

    def __init__(self, folder: Path, name: str, names: Sequence[str]) -> None:
        """`names`: those of the extra columns."""
        self._folder, self._name, self._names = folder, name, names
        self._rows = Draft(folder / f"{name}.rows.jsonl")
        self._arrays: dict[str, _GrowingArray] = {}
        self._ends: dict[str, int] = {}

    @property
    def drafts(self) -> list[Draft]:
        return [self._rows, *(array.draft for array in self._arrays.values())]

    def add_rows(self, rows: Sequence[Row], columns: Mapping[str, Array]) -> None:
        """Writes rows, at least one, with the columns of `values.columns`."""
        for place, row in enumerate(rows):
            record = {"row": row.number, **dict(zip(self._names, row.extra, strict=True))}
            record |= {name: columns[name][place].item() for name in JSON_COLUMNS}
            self._rows.stream.write(json.dumps(record, default=as_text).encode() + b"\n")
        for name, column in columns.items():
            if name.endswith("_lengths"):
                self._append_offsets(name.replace("_lengths", "_offsets"), column)
            elif name not in JSON_COLUMNS:
                self._array(name).append(column)

    def finish(self) -> None:
        """Writes the lengths of the arrays."""
        for array in self._arrays.values():
            array.finish()

    def discard(self) -> None:
        """Removes the files."""
        for draft in self.drafts:
            draft.discard()

    def _append_offsets(self, name: str, lengths: Array) -> None:
        last = self._ends.get(name)
        offsets = np.cumsum([last or 0, *lengths], dtype=np.int64)
        self._array(name).append(offsets if last is None else offsets[1:])
        self._ends[name] = int(offsets[-1])

    def _array(self, name: str) -> "_GrowingArray":
        if name not in self._arrays:
            self._arrays[name] = _GrowingArray(Draft(self._folder / f"{self._name}.{name}.npy"))
        return self._arrays[name]


class _GrowingArray:
    """A .npy file whose first axis grows; the header that numpy writes has room for an axis of any length."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self._count = 0
        self._dtype, self._rest = np.dtype(np.float32), ()
        self._header_bytes = 0

    def append(self, rows: Array) -> None:
        if not self._header_bytes:
            self._dtype, self._rest = rows.dtype, rows.shape[1:]
            self._header_bytes = self.draft.stream.write(self._header())
        self._count += len(rows)
        self.draft.stream.write(np.ascontiguousarray(rows).data)

    def finish(self) -> None:
        header = self._header()
        assert len(header) == self._header_bytes, "the header has outgrown its room"
        self.draft.stream.seek(0)
        self.draft.stream.write(header)

    def _header(self) -> bytes:
        memory = io.BytesIO()
        shape = (self._count, *self._rest)
        descr = npy_format.dtype_to_descr(self._dtype)
        npy_format.write_array_header_1_0(memory, {"descr": descr, "fortran_order": False, "shape": shape})
        return memory.getvalue()

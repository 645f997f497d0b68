"""A shard as .npy files, one a column, and a .jsonl with what is no number. Arrays grow as windows come.

`part-000003.dense.npy` and so on, named as `values.columns` names them; lengths are written as offsets, one more than
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

ASIDE = ("tokens", "truncated")
"""Columns that stand in the .jsonl."""


class NpyShard:
    """The files of one shard."""

    def __init__(self, folder: Path, name: str, names: Sequence[str]) -> None:
        """`names`: of what stands beside a row. Raises OSError, as all of it does."""
        self._folder, self._name, self._names = folder, name, names
        self._rows = Draft(folder / f"{name}.rows.jsonl")
        self._arrays: dict[str, _Growing] = {}
        self._ends: dict[str, int] = {}

    @property
    def drafts(self) -> list[Draft]:
        return [self._rows, *(each.draft for each in self._arrays.values())]

    def add(self, rows: Sequence[Row], columns: Mapping[str, Array]) -> None:
        """Rows, at least one, with the columns of `values.columns`."""
        for place, row in enumerate(rows):
            found = {"row": row.number, **dict(zip(self._names, row.beside, strict=True))}
            found |= {name: columns[name][place].item() for name in ASIDE}
            self._rows.stream.write(json.dumps(found, default=as_text).encode() + b"\n")
        for name, column in columns.items():
            if name.endswith("_lengths"):
                self._add_offsets(name.replace("_lengths", "_offsets"), column)
            elif name not in ASIDE:
                self._array(name).add(column)

    def finish(self) -> None:
        """Nothing more comes."""
        for each in self._arrays.values():
            each.finish()

    def discard(self) -> None:
        """Leaves nothing."""
        for draft in self.drafts:
            draft.discard()

    def _add_offsets(self, name: str, lengths: Array) -> None:
        last = self._ends.get(name)
        offsets = np.cumsum([last or 0, *lengths], dtype=np.int64)
        self._array(name).add(offsets if last is None else offsets[1:])
        self._ends[name] = int(offsets[-1])

    def _array(self, name: str) -> "_Growing":
        if name not in self._arrays:
            self._arrays[name] = _Growing(Draft(self._folder / f"{self._name}.{name}.npy"))
        return self._arrays[name]


class _Growing:
    """A .npy whose first axis grows. numpy leaves room in the header for a first axis of any length."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self._count = 0
        self._dtype, self._rest = np.dtype(np.float32), ()
        self._header = 0

    def add(self, part: Array) -> None:
        if not self._header:
            self._dtype, self._rest = part.dtype, part.shape[1:]
            self._header = self.draft.stream.write(self._head())
        self._count += len(part)
        self.draft.stream.write(np.ascontiguousarray(part).data)

    def finish(self) -> None:
        head = self._head()
        assert len(head) == self._header, "the header has outgrown its room"
        self.draft.stream.seek(0)
        self.draft.stream.write(head)

    def _head(self) -> bytes:
        memory = io.BytesIO()
        shape = (self._count, *self._rest)
        descr = npy_format.dtype_to_descr(self._dtype)
        npy_format.write_array_header_1_0(memory, {"descr": descr, "fortran_order": False, "shape": shape})
        return memory.getvalue()

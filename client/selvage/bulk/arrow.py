"""Vectors as Arrow arrays, and the import of pyarrow where something needs it."""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np

from selvage.bulk.failures import Failed
from selvage.results import Array

LIST_COLUMNS = {"sparse": ("sparse_ids", "sparse_weights"), "multi_vector": ("multi_vector", "multi_vector_scales")}
"""Columns that hold a list for each text, by their output."""


def pyarrow(purpose: str) -> tuple[Any, Any]:
    """`pyarrow` and `pyarrow.parquet`. Raises Failed with the command that installs them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise Failed(f"{purpose} needs pyarrow (the extra bulk): pip install pyarrow") from error
    return pyarrow, pyarrow.parquet


def as_text(value: Any) -> str:
    """A value that JSON cannot write as text: a date, a decimal, bytes as base64, or an Arrow value in nanoseconds."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    cast = getattr(value, "cast", None)
    return str(cast("string") if cast is not None else value)


def arrays(columns: Mapping[str, Array]) -> dict[str, Any]:
    """The columns of `values.columns` as Arrow arrays with a value for each text.

    `tokens`, `truncated`, `dense_scales`; `dense` as lists of fixed size; `sparse_ids` and `sparse_weights` as lists;
    `multi_vector` as a list of lists of fixed size, `multi_vector_scales` as lists.
    """
    import pyarrow

    plain = ("tokens", "truncated", "dense_scales")
    by_name = {name: pyarrow.array(columns[name]) for name in plain if name in columns}
    if "dense" in columns:
        by_name["dense"] = _fixed_lists(columns["dense"])
    for output, names in LIST_COLUMNS.items():
        for name in names:
            if name in columns:
                by_name[name] = _lists(columns[f"{output}_lengths"], columns[name])
    return by_name


def _fixed_lists(rows: Array) -> Any:
    import pyarrow

    flat = pyarrow.array(np.ascontiguousarray(rows).reshape(-1))
    return pyarrow.FixedSizeListArray.from_arrays(flat, rows.shape[1])


def _lists(lengths: Array, entries: Array) -> Any:
    import pyarrow

    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = _fixed_lists(entries) if entries.ndim == 2 else pyarrow.array(entries)
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets), values)

"""Replies -> Arrow columns with a value for each text."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from selvage.bulk import Failed
from selvage.messages.options import VectorOptions
from selvage.results import Array, Embeddings

OPTIONS = tuple(name for name in VectorOptions.__annotations__ if name != "model")
"""Options of `Client.embed` that say how a vector is made, apart from `output`."""


def pyarrow(purpose: str) -> Any:
    """The module `pyarrow`. Raises Failed with the command that installs it."""
    try:
        import pyarrow
    except ImportError as error:
        raise Failed(f"{purpose} needs pyarrow (the extra bulk): pip install pyarrow") from error
    return pyarrow


def vector_table(replies: Sequence[Embeddings], order: Sequence[int]) -> Any:
    """The pyarrow.Table of replies, whose texts stand end to end and are put in an order.

    `tokens` int32, `truncated` bool; `dense` as lists of fixed size, `dense_scales` float32; `sparse_ids` and
    `sparse_weights` as lists of int32 and float32; `multi_vector` as lists of lists of fixed size,
    `multi_vector_scales` as lists of float32. Scales are those of int8.
    """
    import pyarrow as pa

    def end_to_end(name: str) -> list[Any]:
        """The outputs of all replies; empty where there are none."""
        parts = [getattr(reply, name) for reply in replies]
        return [] if parts[0] is None else parts

    columns: dict[str, Any] = {
        "tokens": pa.array(np.concatenate(end_to_end("token_counts"))),
        "truncated": pa.array(np.concatenate(end_to_end("truncated"))),
    }
    if dense := end_to_end("dense"):
        columns["dense"] = _fixed_lists(np.concatenate(dense))
    if scales := end_to_end("dense_scales"):
        columns["dense_scales"] = pa.array(np.concatenate(scales))
    if sparse := list(chain.from_iterable(end_to_end("sparse"))):
        lengths = [len(weights) for weights in sparse]
        ids = np.fromiter(chain.from_iterable(sparse), np.int32)
        weights = np.fromiter(chain.from_iterable(weights.values() for weights in sparse), np.float32)
        columns |= {"sparse_ids": _lists(lengths, ids), "sparse_weights": _lists(lengths, weights)}
    for name in ("multi_vector", "multi_vector_scales"):
        if arrays := list(chain.from_iterable(end_to_end(name))):
            columns[name] = _lists(map(len, arrays), np.concatenate(arrays))
    return pa.table(columns).take(pa.array(order))


def vector_schema(options: Mapping[str, Any], dense: int, multi_vector: int) -> Any:
    """The pyarrow.Schema of `vector_table`, known before there is a reply.

    `options`: those of `Client.embed`, whose `output` is a list. `dense` and `multi_vector`: the model's dimensions, 0
    where unknown: vectors are lists of any size then.
    """
    import pyarrow as pa

    data_type = options.get("data_type", "float32")
    kinds = {"float16": pa.float16(), "int8": pa.int8(), "binary": pa.uint8()}
    kind = kinds.get(data_type, pa.float32())

    def row(dimensions: int) -> Any:
        width = options.get("dimensions") or dimensions
        return pa.list_(kind, ((width + 7) // 8 if data_type == "binary" else width) or -1)

    types: dict[str, Any] = {"tokens": pa.int32(), "truncated": pa.bool_()}
    if "dense" in options["output"]:
        types["dense"] = row(dense)
        types |= {"dense_scales": pa.float32()} if data_type == "int8" else {}
    if "sparse" in options["output"]:
        types |= {"sparse_ids": pa.list_(pa.int32()), "sparse_weights": pa.list_(pa.float32())}
    if "multi_vector" in options["output"]:
        types["multi_vector"] = pa.list_(row(multi_vector))
        types |= {"multi_vector_scales": pa.list_(pa.float32())} if data_type == "int8" else {}
    return pa.schema(types)


def _fixed_lists(rows: Array) -> Any:
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])


def _lists(lengths: Iterable[int], entries: Array) -> Any:
    import pyarrow as pa

    offsets = np.cumsum([0, *lengths], dtype=np.int32)
    values = _fixed_lists(entries) if entries.ndim == 2 else pa.array(entries)
    return pa.ListArray.from_arrays(pa.array(offsets), values)

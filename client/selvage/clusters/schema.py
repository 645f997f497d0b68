"""The Arrow types of the results. They are the same for a batch without any vector."""

from collections.abc import Mapping, Sequence
from typing import Any


def schema(outputs: Sequence[str], vectors: Mapping[str, Any], dense: int | None, multi_vector: int | None) -> Any:
    """The pyarrow.Schema of a table of results.

    `vectors`: the options of the vectors. `dense` and `multi_vector`: the model's dimensions, None where unknown.

    Columns: `dense` as lists, of fixed size where it is known, `dense_scales` float32 for int8. `sparse_ids`,
    `sparse_weights` as lists of int32 and float32. `multi_vector` as lists of rows, which are lists as those of
    `dense`, `multi_vector_scales` as lists of float32. `tokens` int32, `truncated` bool, `reason` string.
    """
    import pyarrow as pa

    kinds = {"float16": pa.float16(), "int8": pa.int8(), "binary": pa.uint8()}
    kind = kinds.get(vectors["data_type"], pa.float32())

    def row(dimensions: int | None) -> Any:
        width = vectors["dimensions"] or dimensions
        if width and vectors["data_type"] == "binary":
            width = (width + 7) // 8
        return pa.list_(kind, width or -1)

    scaled = vectors["data_type"] == "int8"
    types: dict[str, Any] = {}
    if "dense" in outputs:
        types["dense"] = row(dense)
        types |= {"dense_scales": pa.float32()} if scaled else {}
    if "sparse" in outputs:
        types |= {"sparse_ids": pa.list_(pa.int32()), "sparse_weights": pa.list_(pa.float32())}
    if "multi_vector" in outputs:
        types["multi_vector"] = pa.list_(row(multi_vector))
        types |= {"multi_vector_scales": pa.list_(pa.float32())} if scaled else {}
    return pa.schema(types | {"tokens": pa.int32(), "truncated": pa.bool_(), "reason": pa.string()})

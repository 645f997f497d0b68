"""The Arrow types of what comes back. They are the same whether a batch has vectors or none."""

from collections.abc import Mapping, Sequence
from typing import Any


def schema(outputs: Sequence[str], vectors: Mapping[str, Any], dense: int | None, multi_vector: int | None) -> Any:
    """A pyarrow.Schema; `dense` and `multi_vector`: dimensions of the model, None where they are not known.

    `dense`: a list of fixed size where it is known, `dense_scales` float32 of int8. `sparse_ids`, `sparse_weights`:
    lists of int32 and float32. `multi_vector`: lists of such lists, `multi_vector_scales` lists of float32. `tokens`
    int32, `truncated` bool, `reason` string.
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
    found: dict[str, Any] = {}
    if "dense" in outputs:
        found["dense"] = row(dense)
        found |= {"dense_scales": pa.float32()} if scaled else {}
    if "sparse" in outputs:
        found |= {"sparse_ids": pa.list_(pa.int32()), "sparse_weights": pa.list_(pa.float32())}
    if "multi_vector" in outputs:
        found["multi_vector"] = pa.list_(row(multi_vector))
        found |= {"multi_vector_scales": pa.list_(pa.float32())} if scaled else {}
    return pa.schema(found | {"tokens": pa.int32(), "truncated": pa.bool_(), "reason": pa.string()})

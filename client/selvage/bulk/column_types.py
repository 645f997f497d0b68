"""The Arrow types of the output's extra columns, by the types that they have in the inputs."""

from collections.abc import Sequence
from typing import Any

from selvage.bulk.arrow import pyarrow


def types_of(paths: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """The types of the columns that have the same type in all these Parquet files; others are written as text.

    A column of nulls alone has no type of its own, and matches any.
    """
    if not names:
        return {}
    arrow, parquet = pyarrow("reading Parquet")
    schemas = [parquet.read_schema(path) for path in paths]
    types: dict[str, Any] = {}
    for name in names:
        kinds = {_output_type(arrow, schema.field(name).type) for schema in schemas}
        kinds = kinds - {arrow.null()} or kinds
        if len(kinds) == 1:
            types[name] = kinds.pop()
    return types


def _output_type(arrow: Any, kind: Any) -> Any:
    """The type in the output for a type in an input. Only dictionaries, however deep, differ.

    A shard's dictionaries are built from some rows at a time, in the order in which values come. So they have 32-bit
    indices for any number of values, and are not ordered, whatever those of the inputs are.
    """
    types = arrow.types
    if types.is_dictionary(kind):
        return arrow.dictionary(arrow.int32(), kind.value_type)

    def output_field(field: Any) -> Any:
        return field.with_type(_output_type(arrow, field.type))

    if types.is_struct(kind):
        return arrow.struct([output_field(kind.field(place)) for place in range(kind.num_fields)])
    if types.is_map(kind):
        return arrow.map_(output_field(kind.key_field), output_field(kind.item_field), keys_sorted=kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return arrow.list_(output_field(kind.value_field), kind.list_size)
    lists = ((types.is_list, arrow.list_), (types.is_large_list, arrow.large_list))
    views = ((types.is_list_view, arrow.list_view), (types.is_large_list_view, arrow.large_list_view))
    return next((make(output_field(kind.value_field)) for holds, make in (*lists, *views) if holds(kind)), kind)

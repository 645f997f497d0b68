"""The Arrow types of columns that stand beside a row, in the output, by those that the inputs have."""

from collections.abc import Sequence
from typing import Any

from selvage.bulk.arrow import pyarrow


def types_of(paths: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """The types of columns that all these Parquet files give alike; a column that differs becomes text.

    Nulls alone have no type, and fit to any.
    """
    if not names:
        return {}
    arrow, parquet = pyarrow("reading Parquet")
    schemas = [parquet.read_schema(path) for path in paths]
    types: dict[str, Any] = {}
    for name in names:
        kinds = {_of_rows(arrow, schema.field(name).type) for schema in schemas}
        kinds = kinds - {arrow.null()} or kinds
        if len(kinds) == 1:
            types[name] = kinds.pop()
    return types


def _of_rows(arrow: Any, kind: Any) -> Any:
    """Dictionaries, however deep, as a shard has them: made of some rows at a time, in the order in which values come.

    They have room for any number of values, and no order that means something, whatever those of the inputs had.
    """
    types = arrow.types
    if types.is_dictionary(kind):
        return arrow.dictionary(arrow.int32(), kind.value_type)

    def field(of: Any) -> Any:
        return of.with_type(_of_rows(arrow, of.type))

    if types.is_struct(kind):
        return arrow.struct([field(kind.field(place)) for place in range(kind.num_fields)])
    if types.is_map(kind):
        return arrow.map_(field(kind.key_field), field(kind.item_field), keys_sorted=kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return arrow.list_(field(kind.value_field), kind.list_size)
    lists = ((types.is_list, arrow.list_), (types.is_large_list, arrow.large_list))
    views = ((types.is_list_view, arrow.list_view), (types.is_large_list_view, arrow.large_list_view))
    return next((make(field(kind.value_field)) for holds, make in (*lists, *views) if holds(kind)), kind)

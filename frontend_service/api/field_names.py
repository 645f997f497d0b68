"""Fields of errors by the names that another API has for them. Messages stay as they are. Knows no API."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy

from shared.errors import SelvageError

FieldNames = Mapping[str, str]
"""Our names of fields, each with that of an API.

`texts[]` is any entry of a list: `[]` in its new name is the entry's place, and a new name without `[]` has none. An
entry without a name of its own is named after its list, and `texts[0]` names a single one.
"""
FIELD = re.compile(r"(\w+)(\[\d+\])?")


def field_as(field: str, names: FieldNames) -> str:
    """A field such as `texts[3]` as an API names it, such as `input[3]`.

    Fields that `names` lacks stay, and so does what is within an entry: only the caller's own form has that.
    """
    parts = FIELD.fullmatch(field)
    if parts is None or field in names:
        return names.get(field, field)
    name, place = parts[1], parts[2] or ""
    if place and f"{name}[]" in names:
        return names[f"{name}[]"].replace("[]", place)
    return names.get(name, name) + place


@contextmanager
def fields_as(names: Callable[[], FieldNames]) -> Iterator[None]:
    """Raises errors of the block as copies with the field as an API names it: other requests may share the original."""
    try:
        yield
    except SelvageError as error:
        renamed = copy(error)
        renamed.field = field_as(error.field, names())
        raise renamed from error

"""Numbers of the contract's enums <-> the names that people give: OUTPUT_KIND_DENSE is "dense"."""

import re
from typing import Any

from selvage.errors import InvalidInput


def number(enum: Any, name: str, field: str) -> Any:
    """Of a name such as "late_interaction". Raises InvalidInput for one that there is not."""
    known = names(enum)
    if name not in known:
        raise InvalidInput(f"{field} is {name!r}; there are {', '.join(known)}", field=field)
    return enum.DESCRIPTOR.values_by_name[_prefix(enum) + name.upper()].number


def number_or_none(enum: Any, name: str | None, field: str) -> Any:
    """None where no name is given. Raises InvalidInput."""
    return number(enum, name, field) if name else None


def name(enum: Any, value: int) -> str:
    """Of a number; one that a newer service tells stays a number."""
    known = enum.DESCRIPTOR.values_by_number.get(value)
    return known.name.removeprefix(_prefix(enum)).lower() if known else str(value)


def names(enum: Any) -> list[str]:
    """All that may be asked for; 0 stands for the default."""
    return [name(enum, each.number) for each in enum.DESCRIPTOR.values if each.number]


def _prefix(enum: Any) -> str:
    """Of InputType: INPUT_TYPE_."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", enum.DESCRIPTOR.name).upper() + "_"

"""Numbers of the contract's enums <-> the names that callers use: OUTPUT_KIND_DENSE is "dense"."""

import re
from functools import cache
from typing import Any

from selvage.errors import InvalidInput


def number(enum: Any, name: str, field: str) -> Any:
    """The number of a name such as "late_interaction". Raises InvalidInput where there is no such name."""
    choices = names(enum)
    if name not in choices:
        raise InvalidInput(f"{field} is {name!r}; there are {', '.join(choices)}", field=field)
    return enum.DESCRIPTOR.values_by_name[_prefix(enum) + name.upper()].number


def number_or_none(enum: Any, name: str | None, field: str) -> Any:
    """The number of a name; None where there is no name. Raises InvalidInput."""
    return number(enum, name, field) if name else None


def name(enum: Any, value: int) -> str:
    """The name of a number; the number itself, as text, where only a newer contract has it."""
    descriptor = enum.DESCRIPTOR.values_by_number.get(value)
    return descriptor.name.removeprefix(_prefix(enum)).lower() if descriptor else str(value)


@cache
def names(enum: Any) -> tuple[str, ...]:
    """All names that callers may use; 0 has none, because it stands for the default."""
    return tuple(name(enum, descriptor.number) for descriptor in enum.DESCRIPTOR.values if descriptor.number)


@cache
def _prefix(enum: Any) -> str:
    """What the names of an enum's values begin with, such as INPUT_TYPE_ for InputType."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", enum.DESCRIPTOR.name).upper() + "_"

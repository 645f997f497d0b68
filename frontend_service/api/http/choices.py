"""Words that a place in a body may be, where it is one of some."""

import re
from collections.abc import Iterator

import msgspec
from msgspec import inspect

STEP = re.compile(r"\[|[A-Za-z_]\w*")
"""A field's name, or an entry of a list."""


def choices(kind: type[msgspec.Struct], path: str) -> list[str]:
    """Words that may stand at a `path` as msgspec tells it, such as `parameters.words[2]`; none where any may."""
    types = list(_alternatives(inspect.type_info(kind)))
    for step in STEP.findall(path):
        types = [choice for type_ in types for inner in _inner(type_, step) for choice in _alternatives(inner)]
    literals = [type_.values for type_ in types if isinstance(type_, inspect.LiteralType)]
    return [word for words in literals for word in words if isinstance(word, str)]


def _alternatives(type_: inspect.Type) -> Iterator[inspect.Type]:
    """A type, or those that it is a union of."""
    if isinstance(type_, inspect.Metadata):
        yield from _alternatives(type_.type)
    elif isinstance(type_, inspect.UnionType):
        for alternative in type_.types:
            yield from _alternatives(alternative)
    else:
        yield type_


def _inner(type_: inspect.Type, step: str) -> list[inspect.Type]:
    """Types a step further in."""
    if isinstance(type_, inspect.ListType) and step == "[":
        return [type_.item_type]
    if isinstance(type_, inspect.StructType):
        return [field.type for field in type_.fields if field.encode_name == step]
    return []

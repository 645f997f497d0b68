"""The words that a field of a body may have, where it takes one of several."""

import re
from collections.abc import Iterator

import msgspec
from msgspec import inspect

STEP = re.compile(r"\[|[A-Za-z_]\w*")
"""A step of a path: a field's name, or an entry of a list."""


def choices(kind: type[msgspec.Struct], path: str) -> list[str]:
    """Words that a struct allows at a `path` of msgspec's form, such as `parameters.words[2]`; none where all are."""
    types = list(_alternatives(inspect.type_info(kind)))
    for step in STEP.findall(path):
        types = [choice for type_ in types for inner in _inner(type_, step) for choice in _alternatives(inner)]
    literals = [type_.values for type_ in types if isinstance(type_, inspect.LiteralType)]
    return [word for words in literals for word in words if isinstance(word, str)]


def _alternatives(type_: inspect.Type) -> Iterator[inspect.Type]:
    """The types of a union, or the type itself."""
    if isinstance(type_, inspect.Metadata):
        yield from _alternatives(type_.type)
    elif isinstance(type_, inspect.UnionType):
        for alternative in type_.types:
            yield from _alternatives(alternative)
    else:
        yield type_


def _inner(type_: inspect.Type, step: str) -> list[inspect.Type]:
    """The types of a list's entries or of a struct's field, as the step says."""
    if isinstance(type_, inspect.ListType) and step == "[":
        return [type_.item_type]
    if isinstance(type_, inspect.StructType):
        return [field.type for field in type_.fields if field.encode_name == step]
    return []

"""Fields that this API cannot honour: refused by name, unless their value asks for nothing.

Those that the original API has are in the structs of requests. Of all others a name decides: one that says that it
changes the answer is refused, and the rest is ignored, since clients send fields of their own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import msgspec
from msgspec import inspect

from frontend_service.api.http.leniency import MEMBERS
from shared.errors import InvalidInput, clip

CHANGES_ANSWER = re.compile(
    r"(^|_)(activation|chunking|dims?|dimensions?|dtype|instruct(ions?)?|normali[sz](e|ed|ation)|parameters|pool(ing|ed)?"
    r"|precision|prefix|quanti[sz](e|ed|ation)|softmax|suffix|template|threshold|top_?[kn]|truncat(e|ed|ion))(_|$)"
    r"|(^|_)(prompts?(_name)?|top)$|^(task|(input|task)_type)$|^max_(\w+_)?(length|tokens)(_|$)"
)
"""Names, in small letters with underscores, of fields that change an answer."""
NOTHING = re.compile(rb'null|""|{\s*}|\[\s*\]')
"""Pattern of values that ask for nothing."""
WORD = re.compile("(?<=[a-z0-9])(?=[A-Z])|-")
"""A place where another word begins in a name such as `topK` or `top-k`."""
KEY = "refused"
"""The key of the refusal in a field's metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The reason why a field is refused, and its values that ask for nothing, the default among them."""

    why: str
    harmless: tuple[Any, ...]


def refusing(why: str, *harmless: Any) -> msgspec.Meta:
    """Metadata of a refused field of type Any. `why` says what to do instead; null and `harmless` are accepted."""
    accepted = "".join(f" {msgspec.json.encode(value).decode()} is accepted." for value in harmless)
    return msgspec.Meta(
        description=f"Refused: {why}.{accepted}", extra={KEY: Refusal(why=why, harmless=(None, *harmless))}
    )


class RefusedFields:
    """The refusals of one struct."""

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        self._refusals: dict[str, Refusal] = {}
        for field in msgspec.structs.fields(kind):
            metas = [meta for meta in get_args(field.type) if isinstance(meta, msgspec.Meta)]
            for refusal in [meta.extra[KEY] for meta in metas if meta.extra and KEY in meta.extra]:
                self._refusals[field.encode_name] = refusal

    def check(self, body: Mapping[str, Any]) -> None:
        """Checks the values of fields, of which some may be absent. Raises InvalidInput, naming the field."""
        for field, refusal in self._refusals.items():
            if body.get(field) not in refusal.harmless:
                raise InvalidInput(f"{field} is refused: {refusal.why}", field=field)

    def check_struct(self, body: msgspec.Struct) -> None:
        """Checks a struct of this kind. Raises InvalidInput, naming the field."""
        self.check({field: getattr(body, field) for field in self._refusals})


class UnknownFields:
    """The fields that a struct lacks, and those that the structs of its fields lack."""

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        self._fields = _fields_of(inspect.type_info(kind)) or {}

    def check(self, raw: bytes) -> None:
        """Checks the names in a body. Raises InvalidInput for one that says that it changes the answer.

        What is null or empty asks for nothing.
        """
        _check_names(raw, self._fields, "")


def _fields_of(type_: inspect.Type) -> dict[str, Any] | None:
    """The fields of a type that is a struct or may be one, each with its own; else none. None of a refused field."""
    if isinstance(type_, inspect.Metadata):
        return None if KEY in (type_.extra or {}) else _fields_of(type_.type)
    if isinstance(type_, inspect.UnionType):
        return next(filter(None, map(_fields_of, type_.types)), {})
    fields = type_.fields if isinstance(type_, inspect.StructType) else ()
    return {field.encode_name: _fields_of(field.type) for field in fields}


def _check_names(raw: bytes | msgspec.Raw, fields: Mapping[str, Any], outer: str) -> None:
    """Raises InvalidInput for an unknown field of an object, or of one inside, that would change the answer."""
    for name, member in MEMBERS.decode(raw).items():
        value = memoryview(member)
        if fields.get(name) and value[0] == ord("{"):
            _check_names(member, fields[name], f"{outer}{name}.")
        elif name not in fields and CHANGES_ANSWER.search(WORD.sub("_", name).lower()) and not NOTHING.fullmatch(value):
            taken = [field for field, inner in fields.items() if inner is not None and CHANGES_ANSWER.search(field)]
            kin = ", ".join(taken) or "none of this kind"
            field = outer + clip(name).strip("'")
            raise InvalidInput(
                f"{field} would change the answer, and is no field of this path, which has {kin}", field=field
            )

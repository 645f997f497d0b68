"""Fields that an original knows and nothing here can honour: refused by name, unless they ask for nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from shared.errors import InvalidInput

KEY = "refused"
"""The key of a field's refusal in its metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a field is refused, and the values of it that ask for nothing, its default among them."""

    why: str
    nothing: tuple[Any, ...]


def refusing(why: str, *nothing: Any) -> msgspec.Meta:
    """Metadata of a field of type Any. `why` says what to do instead; null and `nothing` are accepted."""
    harmless = "".join(f" {msgspec.json.encode(value).decode()} is accepted." for value in nothing)
    return msgspec.Meta(
        description=f"Refused: {why}.{harmless}", extra={KEY: Refusal(why=why, nothing=(None, *nothing))}
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
        """`body`: values by their fields, some of them. Raises InvalidInput, naming the field."""
        for field, refusal in self._refusals.items():
            if body.get(field) not in refusal.nothing:
                raise InvalidInput(f"{field} is refused: {refusal.why}", field=field)

    def check_struct(self, body: msgspec.Struct) -> None:
        """Raises InvalidInput, naming the field, for a struct of this kind."""
        self.check({field: getattr(body, field) for field in self._refusals})

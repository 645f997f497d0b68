"""Fields that an original knows and nothing here can honour: refused by name, unless they ask for nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from shared.errors import InvalidInput

KEY = "refused"
"""Of a field's metadata."""


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


class Refusals:
    """Those of one struct."""

    def __init__(self, kind: Any) -> None:
        """`kind`: any type; only structs have some."""
        self._refusals: dict[str, Refusal] = {}
        for field in (
            msgspec.structs.fields(kind) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else ()
        ):
            metas = [meta for meta in get_args(field.type) if isinstance(meta, msgspec.Meta)]
            for refusal in [meta.extra[KEY] for meta in metas if meta.extra and KEY in meta.extra]:
                self._refusals[field.encode_name] = refusal

    def __contains__(self, field: str) -> bool:
        return field in self._refusals

    def check(self, body: Any) -> None:
        """A struct, or JSON as Python has it. Raises InvalidInput, naming the field."""
        if isinstance(body, list | str | int | float | None):
            return
        for field, refusal in self._refusals.items():
            value = body.get(field) if isinstance(body, Mapping) else getattr(body, field)
            if value not in refusal.nothing:
                raise InvalidInput(f"{field} is refused: {refusal.why}", field=field)

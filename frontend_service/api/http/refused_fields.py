"""Fields that the original API has and this one cannot honour: refused by name, unless their value asks for nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from shared.errors import InvalidInput

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

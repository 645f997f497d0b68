"""Who may ask: API keys, known by their hashes, each with what its callers may have. Knows no door.

The file is TOML:

    [[keys]]
    name = "search"
    sha256 = "..."             # of the key, 64 hexadecimal digits
    priority = "interactive"   # the most urgent that its callers may be
    fairness_key = "search"    # keys that share one count as one caller; default: the name
    requests_at_once = 64      # default: no limit of its own

`python -m frontend_service.access.new_key search` makes a key, and its entry.
"""

import hashlib
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import structlog
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from shared.caller import Caller, Quota
from shared.errors import Unauthenticated
from shared.jobs import PRIORITIES, Priority
from shared.security.reloaded_file import Fresh

LONGEST_NAME = 128
"""Letters."""

log = structlog.get_logger("keys")


def _priority(value: object) -> Priority:
    if not isinstance(value, str) or value not in PRIORITIES:
        raise ValueError(f"there are {', '.join(PRIORITIES)}")
    return PRIORITIES[value]


class KeyEntry(BaseModel):
    """A key as the file has it."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    priority: Annotated[Priority, BeforeValidator(_priority)] = Priority.DEFAULT
    fairness_key: Annotated[str, Field(max_length=LONGEST_NAME)] = ""
    requests_at_once: Annotated[int, Field(ge=1)] | None = None


class File(BaseModel):
    """All of it."""

    model_config = ConfigDict(extra="forbid")

    keys: list[KeyEntry]


@dataclass(frozen=True, slots=True)
class _KnownKey:
    """A key that may ask."""

    entry: KeyEntry
    quota: Quota | None


class ApiKeys:
    """All keys of a file, which is read again when it changes."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises OSError and ValueError, whose message tells what is wrong with the file."""
        self._quotas: dict[str, Quota] = {}
        self._known: Fresh[Mapping[str, _KnownKey]] = Fresh([path], self._read, self._stays, clock)

    def identify(self, caller: Caller) -> Caller:
        """The same caller with what belongs to its key; metadata can only make it less urgent.

        Raises Unauthenticated.
        """
        if not caller.secret:
            raise Unauthenticated("an API key is needed: authorization: Bearer KEY", field="authorization")
        found = self._known.value.get(hashed(caller.secret))
        if found is None:
            raise Unauthenticated("the API key is not known", field="authorization")
        entry = found.entry
        return replace(
            caller,
            secret="",
            key=entry.fairness_key or entry.name,
            priority=max(caller.priority or entry.priority, entry.priority),
            quota=found.quota,
        )

    def _read(self, contents: Sequence[bytes]) -> dict[str, _KnownKey]:
        try:
            entries = File.model_validate(tomllib.loads(contents[0].decode())).keys
        except ValidationError as error:
            # Not what was given: it may be a key in plain text.
            problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
            raise ValueError("; ".join(problems)) from None
        for field in ("name", "sha256"):
            values = [getattr(each, field) for each in entries]
            twice = next((each.name for each in entries if values.count(getattr(each, field)) > 1), None)
            if twice is not None:
                raise ValueError(f"the {field} of {twice!r} is there twice")
        return {each.sha256: _KnownKey(each, self._quota(each)) for each in entries}

    def _quota(self, entry: KeyEntry) -> Quota | None:
        """The one of that name, so that what is under way still counts when the file is read again."""
        if entry.requests_at_once is None:
            return None
        quota = self._quotas.setdefault(entry.name, Quota(entry.requests_at_once))
        quota.most = entry.requests_at_once
        return quota

    def _stays(self, error: Exception) -> None:
        log.error("API keys not read again, the old ones stay", why=str(error))


def hashed(secret: str) -> str:
    """As the file has it. Keys are random, so a fast hash is enough: nobody guesses one."""
    return hashlib.sha256(secret.encode()).hexdigest()

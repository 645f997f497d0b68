"""API keys, stored as hashes, each with the priority, fairness key and quota of its callers. Knows no API.

The file is TOML:

    [[keys]]
    name = "search"
    sha256 = "..."             # hash of the key, 64 hexadecimal digits
    priority = "interactive"   # the most urgent priority that its callers may use
    fairness_key = "search"    # keys with the same fairness key count as one caller; default: the name
    requests_at_once = 64      # default: no limit for this key
    streams_at_once = 4        # default: requests_at_once

`python -m frontend_service.access.new_key search` makes a key and its entry.
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
from shared.security import Fresh

LONGEST_NAME = 128
"""Most letters of a key's name and of a fairness key."""

log = structlog.get_logger("keys")


def _priority(value: object) -> Priority:
    if not isinstance(value, str) or value not in PRIORITIES:
        raise ValueError(f"there are {', '.join(PRIORITIES)}")
    return PRIORITIES[value]


class KeyEntry(BaseModel):
    """A key as the file describes it."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    priority: Annotated[Priority, BeforeValidator(_priority)] = Priority.DEFAULT
    fairness_key: Annotated[str, Field(max_length=LONGEST_NAME)] = ""
    requests_at_once: Annotated[int, Field(ge=1)] | None = None
    streams_at_once: Annotated[int, Field(ge=1)] | None = None


class KeyFile(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid")

    keys: list[KeyEntry]


@dataclass(frozen=True, slots=True)
class _AcceptedKey:
    """A key of the file, with the quotas of requests and of streams that its callers share."""

    entry: KeyEntry
    quota: Quota | None
    stream_quota: Quota | None


class ApiKeys:
    """The keys of a file, which is read again when it changes."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises OSError, and ValueError with a message that says what is wrong with the file."""
        self._quotas: dict[str, Quota] = {}
        self._stream_quotas: dict[str, Quota] = {}
        self._keys: Fresh[Mapping[str, _AcceptedKey]] = Fresh([path], self._read, self._log_unreadable, clock)

    def identify(self, caller: Caller) -> Caller:
        """The caller with the priority, fairness key and quota of its API key. Raises Unauthenticated.

        The priority in its metadata counts only where it is less urgent than that of the key.
        """
        if not caller.secret:
            raise Unauthenticated("an API key is needed: authorization: Bearer KEY", field="authorization")
        credential = hashed(caller.secret)
        key = self._keys.value.get(credential)
        if key is None:
            raise Unauthenticated("the API key is not known", field="authorization")
        entry = key.entry
        return replace(
            caller,
            secret="",
            key=entry.fairness_key or entry.name,
            priority=max(caller.priority or entry.priority, entry.priority),
            quota=key.quota,
            stream_quota=key.stream_quota,
            credential=credential,
        )

    def accepts(self, caller: Caller) -> bool:
        """Tells whether the API key of a caller that was identified is still in the file."""
        return caller.credential in self._keys.value

    def _read(self, contents: Sequence[bytes]) -> dict[str, _AcceptedKey]:
        try:
            entries = KeyFile.model_validate(tomllib.loads(contents[0].decode())).keys
        except ValidationError as error:
            # Without the values, which may be keys in plain text.
            problems = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
            raise ValueError("; ".join(problems)) from None
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        for field in ("name", "sha256"):
            values = [getattr(entry, field) for entry in entries]
            twice = next((entry.name for entry in entries if values.count(getattr(entry, field)) > 1), None)
            if twice is not None:
                raise ValueError(f"the {field} of {twice!r} is there twice")
        return {entry.sha256: self._accepted(entry) for entry in entries}

    def _accepted(self, entry: KeyEntry) -> _AcceptedKey:
        requests, streams = entry.requests_at_once, entry.streams_at_once
        return _AcceptedKey(
            entry,
            _quota(self._quotas, entry.name, requests),
            _quota(self._stream_quotas, entry.name, requests if streams is None else streams),
        )

    def _log_unreadable(self, error: Exception) -> None:
        log.error("API keys not read again, the old ones stay", why=str(error))


def _quota(quotas: dict[str, Quota], name: str, most: int | None) -> Quota | None:
    """The quota of a name, which outlives a change of the file, so that what is in progress still counts."""
    if most is None:
        return None
    quota = quotas.setdefault(name, Quota(most))
    quota.most = most
    return quota


def hashed(secret: str) -> str:
    """The hash of a key, as the file has it. Keys are random and cannot be guessed, so a fast hash is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()

"""The secret that frontends and workers share: who does not have it may not attach. Knows no transport.

Its file has one secret a line. A worker takes any of them, a frontend shows the first: so a new one is put first into
the workers' file and then into the frontends', and the old one taken out at last.
"""

import hmac
from collections.abc import Callable, Sequence
from dataclasses import replace

from shared.caller import Caller
from shared.errors import Unauthenticated
from shared.security.reloaded_file import Fresh

LEAST_LETTERS = 16


class LinkSecret:
    """Of a file, which is read again when it changes."""

    def __init__(self, path: str, on_error: Callable[[Exception], None]) -> None:
        """Raises OSError, and ValueError for a file that holds none."""
        self._secrets: Fresh[Sequence[str]] = Fresh([path], _read, on_error)

    @property
    def shown(self) -> str:
        """What a frontend shows."""
        return self._secrets.value[0]

    def identify(self, caller: Caller) -> Caller:
        """The caller, if it has the secret. Raises Unauthenticated."""
        shown = caller.secret.encode()
        # Each compared to its end: the time must not tell how much of a guess is right.
        if not any(hmac.compare_digest(shown, secret.encode()) for secret in self._secrets.value):
            raise Unauthenticated("the link's secret is missing or wrong (--link-secret-file)", field="authorization")
        return replace(caller, secret="")


def _read(contents: Sequence[bytes]) -> list[str]:
    found = [line for each in contents[0].decode().splitlines() if (line := each.strip())]
    if not found or not all(each.isascii() and each.isprintable() and len(each) >= LEAST_LETTERS for each in found):
        raise ValueError(f"a secret must be a line of {LEAST_LETTERS} or more letters of ASCII")
    return found

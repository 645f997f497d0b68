"""The secret of the link: a frontend without it may not attach to a worker. Knows no transport.

Its file has one secret a line. A worker accepts all of them, a frontend sends the first. To change the secret, add the
new one to the workers' file, then replace it in the frontends' file, then remove the old one from the workers'.
"""

import hmac
from collections.abc import Callable, Sequence
from dataclasses import replace

from shared.caller import Caller
from shared.errors import Unauthenticated
from shared.security.reloaded_file import Fresh

LEAST_LETTERS = 16


class LinkSecret:
    """The secrets in a file, which is read again when it changes."""

    def __init__(self, path: str, on_error: Callable[[Exception], None]) -> None:
        """Reads the file. Raises OSError, and ValueError for a file without a valid secret."""
        self._secrets: Fresh[Sequence[str]] = Fresh([path], _read, on_error)

    @property
    def shown(self) -> str:
        """The secret that a frontend sends: the first in the file."""
        return self._secrets.value[0]

    def identify(self, caller: Caller) -> Caller:
        """Returns the caller if its secret is valid. Raises Unauthenticated."""
        shown = caller.secret.encode()
        # Comparison in constant time, or a caller could measure how much of a guess is right.
        if not any(hmac.compare_digest(shown, secret.encode()) for secret in self._secrets.value):
            raise Unauthenticated("the link's secret is missing or wrong (--link-secret-file)", field="authorization")
        return replace(caller, secret="")


def _read(contents: Sequence[bytes]) -> list[str]:
    secrets = [secret for line in contents[0].decode().splitlines() if (secret := line.strip())]
    if not secrets or not all(len(text) >= LEAST_LETTERS and text.isascii() and text.isprintable() for text in secrets):
        raise ValueError(f"a secret must be a line of {LEAST_LETTERS} or more letters of ASCII")
    return secrets

"""TLS, the secret of the link, and files that are read again when they change. Knows no transport and no API.

Bad files end the process, with a line that names the flag.
"""

import hmac
import ipaddress
import os
import ssl
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import structlog

from shared.caller import Caller
from shared.errors import Unauthenticated
from shared.settings import ServiceSettings

LOOK_SECONDS = 1.0
"""Seconds between two checks of a file."""
LEAST_LETTERS = 16
"""Fewest letters of the link's secret."""
MOST_BYTES = 16 * 1024 * 1024
"""Longest file that is read: keys and certificates are far shorter."""

T = TypeVar("T")
log = structlog.get_logger("guards")


class Fresh(Generic[T]):
    """A value read from files, which are read again when one of them has changed.

    If they can no longer be read or parsed, the previous value stays and `on_error` is called once.
    """

    def __init__(
        self,
        paths: Sequence[str],
        read: Callable[[Sequence[bytes]], T],
        on_error: Callable[[Exception], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads the files. `read` parses their contents. Raises its ValueError, or OSError."""
        self._paths, self._read, self._on_error, self._clock = paths, read, on_error, clock
        self._looked = clock()
        self._seen = _state(paths)
        self._value = read(_contents(paths))

    @property
    def value(self) -> T:
        """The value of the files as they were at most a second ago."""
        now = self._clock()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            state = _state(self._paths)
            if state != self._seen:
                self._read_again(state)
        return self._value

    def _read_again(self, state: Hashable) -> None:
        """Reads changed files, whose state is `state`."""
        try:
            value = self._read(_contents(self._paths))
        except Exception as error:  # whatever is wrong with the files, calls go on with what was there
            self._seen = state
            self._on_error(error)
            return
        if _state(self._paths) == state:  # else it is still being written: the next check reads it
            self._seen, self._value = state, value


def _contents(paths: Sequence[str]) -> list[bytes]:
    contents = []
    for path in paths:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        contents.append(content)
    return contents


def _state(paths: Sequence[str]) -> Hashable:
    """A state that differs once a file has changed; the error if a file cannot be read."""
    try:
        stats = [os.stat(path) for path in paths]
    except OSError as error:
        return str(error)
    return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A certificate and its key. `certificate`: a chain, the server's first; `ca`: signs those that clients need.

    `context`: the same for servers that use Python's TLS.
    """

    certificate: bytes
    key: bytes = field(repr=False)
    ca: bytes | None
    context: ssl.SSLContext = field(repr=False)


def identity(certificate: str, key: str, ca: str, on_error: Callable[[Exception], None]) -> Fresh[Identity]:
    """Reads the identity from the paths of three files; `ca` may be "".

    While new files are written one after the other, the old identity stays until all of them match. Raises OSError, and
    ValueError if the files do not match.
    """

    def read(contents: Sequence[bytes]) -> Identity:
        return Identity(
            certificate=contents[0],
            key=contents[1],
            ca=contents[2] if ca else None,
            context=_context(certificate, key, ca),
        )

    return Fresh([certificate, key, *([ca] if ca else [])], read, on_error)


def _context(certificate: str, key: str, ca: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        raise ValueError(f"{certificate} and {key} are no pair, or no PEM: {error.reason or error}") from None
    if ca:
        _require(context, ca)
    return context


def _require(context: ssl.SSLContext, ca: str) -> None:
    """Requires a certificate of the client in every handshake; resumed sessions, which show none, are turned off."""
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise ValueError(f"{ca} is no PEM: {error.reason or error}") from None
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # Python cannot turn off the sessions of 1.2
    context.num_tickets = 0


def _no_password() -> str:
    """Refuses encrypted keys; without it OpenSSL would prompt on the terminal and wait."""
    raise ValueError("the private key is encrypted; it must not be")


def is_loopback(listen: str) -> bool:
    """Whether the address HOST:PORT is reachable from this machine only."""
    host = listen.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class LinkSecret:
    """The secrets in a file, one a line, which is read again when it changes. A frontend without one may not attach.

    A worker accepts all of them, a frontend sends the first. To change the secret, add the new one to the workers'
    file, then replace it in the frontends' file, then remove the old one from the workers'.
    """

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


def read_or_exit(flag: str, path: str, make: Callable[[], T]) -> T:
    """Returns `make()`, which reads the file at `path`; if that fails, prints why and ends with status 2."""
    try:
        return make()
    except (OSError, ValueError) as error:
        print(f"--{flag} = {path!r}: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def tls_of(settings: ServiceSettings, ca: str = "") -> Fresh[Identity] | None:
    """The TLS identity of a server; None for plain text. `ca`: file with who signs for clients, empty where none is
    asked for a certificate."""
    certificate, key = settings.tls_certificate, settings.tls_key
    if not certificate:
        return None
    return read_or_exit("tls-certificate", certificate, lambda: identity(certificate, key, ca, stays("certificates")))


def link_secret_of(settings: ServiceSettings) -> LinkSecret | None:
    """The secret of the link; None if the settings have none."""
    path = settings.link_secret_file
    return (
        read_or_exit("link-secret-file", path, lambda: LinkSecret(path, stays("the link's secret"))) if path else None
    )


def stays(what: str) -> Callable[[Exception], None]:
    """Makes the function that logs why changed files could not be read."""

    def log_error(error: Exception) -> None:
        log.error("not read again, what was there stays", what=what, why=str(error))

    return log_error


def warn_if_open(listen: str, guards: Mapping[str, object]) -> None:
    """Logs a warning if other machines reach `listen` and a guard is missing. `guards`: by flag, None if missing."""
    missing = [flag for flag, guard in guards.items() if not guard]
    if missing and not is_loopback(listen):
        log.warning("other machines reach this address", listen=listen, without=missing)

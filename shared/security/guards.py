"""Reads TLS certificates and the link's secret from the files in the settings; bad files end the process."""

import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

import structlog

from shared.security.link_secret import LinkSecret
from shared.security.reloaded_file import Fresh
from shared.security.tls import Identity, identity, is_loopback
from shared.settings import ServiceSettings

T = TypeVar("T")
log = structlog.get_logger("guards")


def read(flag: str, path: str, make: Callable[[], T]) -> T:
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
    return read("tls-certificate", certificate, lambda: identity(certificate, key, ca, stays("certificates")))


def link_secret_of(settings: ServiceSettings) -> LinkSecret | None:
    """The secret of the link; None if the settings have none."""
    path = settings.link_secret_file
    return read("link-secret-file", path, lambda: LinkSecret(path, stays("the link's secret"))) if path else None


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

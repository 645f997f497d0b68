"""What keeps strangers out, as settings name it: TLS and the link's secret. Files that are wrong end the process."""

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
    """What `make` makes of the file at `path`; ends the process with status 2 and a line where it cannot."""
    try:
        return make()
    except (OSError, ValueError) as error:
        print(f"--{flag} = {path!r}: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def tls_of(settings: ServiceSettings) -> Fresh[Identity] | None:
    """What the server proves that it is itself with; None: it speaks plain text."""
    certificate, key, ca = settings.tls_certificate, settings.tls_key, settings.tls_ca
    if not certificate:
        return None
    return read("tls-certificate", certificate, lambda: identity(certificate, key, ca, stays("certificates")))


def link_secret_of(settings: ServiceSettings) -> LinkSecret | None:
    """None: there is none."""
    path = settings.link_secret_file
    return read("link-secret-file", path, lambda: LinkSecret(path, stays("the link's secret"))) if path else None


def stays(what: str) -> Callable[[Exception], None]:
    """Tells that files which have changed make no sense."""

    def told(error: Exception) -> None:
        log.error("not read again, what was there stays", what=what, why=str(error))

    return told


def warn_if_open(listen: str, guards: Mapping[str, object]) -> None:
    """Says so where other machines reach an address without all guards, which are there or None, by their settings."""
    missing = [flag for flag, guard in guards.items() if not guard]
    if missing and not is_loopback(listen):
        log.warning("other machines reach this address", listen=listen, without=missing)

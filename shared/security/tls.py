"""What a server proves that it is itself with, from files of PEM that are read again when they change.

Standard library only. `shared.server.rpc.credentials` makes of it what gRPC takes.
"""

import ipaddress
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shared.security.reloaded_file import Fresh


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """`certificate` is a chain, the server's own first; `ca`: who signs for clients, which then must show one.

    `context`: the same for servers that take Python's own TLS.
    """

    certificate: bytes
    key: bytes = field(repr=False)
    ca: bytes | None
    context: ssl.SSLContext = field(repr=False)


def identity(certificate: str, key: str, ca: str, on_error: Callable[[Exception], None]) -> Fresh[Identity]:
    """By the paths of three files, of which the last may be "". Raises OSError, and ValueError where they do not match.

    While new files are written one after the other, the old ones count until all of them match.
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
    """Certificates of clients, in every handshake: a session of an older one that went on would show none."""
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise ValueError(f"{ca} is no PEM: {error.reason or error}") from None
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # Python cannot turn off the sessions of 1.2
    context.num_tickets = 0


def _no_password() -> str:
    """Else OpenSSL would ask on the terminal, and wait."""
    raise ValueError("the private key is encrypted; it must not be")


def is_loopback(listen: str) -> bool:
    """Whether only this machine reaches HOST:PORT."""
    host = listen.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

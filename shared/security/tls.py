"""The TLS identity of a server, from PEM files that are read again when they change.

Standard library only. `shared.server.rpc.credentials` converts it for gRPC.
"""

import ipaddress
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shared.security.reloaded_file import Fresh


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

"""How the frontend reaches workers: in plain text or by TLS, and with which secret; why a call did not reach one.

Knows no models and no jobs.
"""

from dataclasses import dataclass
from pathlib import Path

import grpc

from shared.caller import AUTHORIZATION
from shared.security import LinkSecret
from shared.server.options import channel_options
from shared.server.status import to_domain_error

RECEIVED_BYTES = 2 * 1024 * 1024
"""Least limit for a worker's message: an honest one has less than a mebibyte beside the lengths of one result. Parsed,
a message takes up to thirty times its bytes."""
LENGTHS_BYTES = 8
"""Most bytes of a text's token rows and sparse entries, as two numbers of up to 268 million."""
NAME_DIFFERS = "Hostname Verification Check failed"
NOT_TLS = "WRONG_VERSION_NUMBER"
NOT_VERIFIED = "CERTIFICATE_VERIFY_FAILED: "
CLOSED = "Socket closed"
REFUSED = "Connection refused"
"""What gRPC's details say of a handshake that failed, by the reason."""
Metadata = tuple[tuple[str, str], ...]


def received_bytes(texts: int) -> int:
    """Most bytes of a worker's message, where a request has so many texts: a result leaves with all its lengths."""
    return max(RECEIVED_BYTES, RECEIVED_BYTES // 2 + LENGTHS_BYTES * texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTransport:
    """Makes the channels of all links. The files, in PEM format, are read again for each channel.

    `ca`: the certificates that workers must be signed by; without it channels are plain text. `secret`: the link secret
    that goes with every call. `received`: most bytes of a message that comes.
    """

    ca: str = ""
    secret: LinkSecret | None = None
    received: int = RECEIVED_BYTES

    def channel(self, address: str, host: str) -> grpc.aio.Channel:
        """Makes a channel to HOST:PORT of a worker that was found by the name `host`. Raises OSError."""
        options: list[tuple[str, int | str]] = [*channel_options(received=self.received)]
        credentials = self.credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        options.append(("grpc.ssl_target_name_override", host))
        return grpc.aio.secure_channel(address, credentials, options=options)

    def credentials(self) -> grpc.ChannelCredentials | None:
        """The credentials for TLS; None for plain text. Raises OSError where a file cannot be read."""
        if not self.ca:
            return None
        return grpc.ssl_channel_credentials(Path(self.ca).read_bytes())

    @property
    def metadata(self) -> Metadata:
        """The metadata of every call: the link secret, if there is one."""
        return () if self.secret is None else ((AUTHORIZATION, f"Bearer {self.secret.shown}"),)


def failure_of(error: grpc.aio.AioRpcError, address: str, host: str, transport: WorkerTransport) -> str:
    """The reason why a call to the worker at `address`, which was found by the name `host`, failed.

    gRPC reports every failed handshake as UNAVAILABLE, and tells them apart only in the details of the error.
    """
    details = error.details() or ""
    if error.code() is not grpc.StatusCode.UNAVAILABLE or "failed to connect" not in details:
        return to_domain_error(error).message
    worker = f"the worker at {address}"
    if NAME_DIFFERS in details:
        return f"the certificate of {worker} is not for {host!r}, the name or address in --worker"
    if NOT_VERIFIED in details:
        why = details.partition(NOT_VERIFIED)[2].partition(":")[0]
        return f"the certificate of {worker} is not trusted: {why}; --worker-ca must have signed it"
    if NOT_TLS in details:
        return f"{worker} speaks plain text; --worker-ca asks for TLS"
    if CLOSED in details:
        wanted = "a certificate of its clients, and frontends have none" if transport.ca else "TLS: --worker-ca"
        return f"{worker} closed the connection at once; it may want {wanted}"
    if REFUSED in details:
        return f"nothing listens at {address}"
    return to_domain_error(error).message

"""TLS credentials of gRPC servers, from files that are read again when they change."""

import grpc

from shared.security.reloaded_file import Fresh
from shared.security.tls import Identity


def server_credentials(files: Fresh[Identity]) -> grpc.ServerCredentials:
    """Credentials of a server: each handshake uses the current files; open connections stay."""
    current = files.value

    def renewed() -> grpc.ServerCertificateConfiguration | None:  # None: nothing is new
        nonlocal current
        if (now := files.value) is current:
            return None
        current = now
        return _configuration(now)

    first = _configuration(current)
    return grpc.dynamic_ssl_server_credentials(first, renewed, current.ca is not None)  # type: ignore[arg-type]


def _configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(identity.key, identity.certificate)], identity.ca)

"""TLS of gRPC's servers and channels, from files that are read again when they change."""

import grpc

from shared.security.reloaded_file import Fresh
from shared.security.tls import Identity


def server_credentials(files: Fresh[Identity]) -> grpc.ServerCredentials:
    """Each handshake meets what the files hold by then; connections that are open stay."""
    told = files.value

    def renewed() -> grpc.ServerCertificateConfiguration | None:  # None: nothing is new
        nonlocal told
        if (now := files.value) is told:
            return None
        told = now
        return _configuration(now)

    first = _configuration(told)
    return grpc.dynamic_ssl_server_credentials(first, renewed, told.ca is not None)  # type: ignore[arg-type]


def _configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(identity.key, identity.certificate)], identity.ca)

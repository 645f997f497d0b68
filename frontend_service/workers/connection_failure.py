"""Why a call to a worker failed, in words that say what to change. Knows gRPC's own words, and no models."""

import grpc

from frontend_service.workers.transport import WorkerTransport
from shared.server.status import to_domain_error

NAME_DIFFERS = "Hostname Verification Check failed"
NOT_TLS = "WRONG_VERSION_NUMBER"
NOT_VERIFIED = "CERTIFICATE_VERIFY_FAILED: "
CLOSED = "Socket closed"
REFUSED = "Connection refused"


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

"""Asks a server once how it is: `python -m shared.probe ADDRESS SERVICE` exits 0 iff SERVICE is SERVING.

The health check of containers. It starts anew every few seconds, so it knows gRPC and nothing of our services.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
# Container runtimes inject the host's proxy settings; the way to a neighbour leads through none.
OPTIONS: list[tuple[str, int | str]] = [("grpc.enable_http_proxy", 0)]


def main(arguments: list[str]) -> int:
    """Prints what health says, for the runtime's log; returns the exit status."""
    asked = _parser().parse_args(arguments)
    request = health_pb2.HealthCheckRequest(service=asked.service)
    with _channel(asked) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        try:
            answer = health.Check(request, timeout=asked.timeout)
        except grpc.RpcError as error:
            print(f"{asked.address}: {error.code().name}: {error.details()}")
            return 1
    print(f"{asked.address}: {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}")
    return 0 if answer.status == SERVING else 1


def _channel(asked: argparse.Namespace) -> grpc.Channel:
    """Raises OSError where a file is not there."""
    if not asked.ca:
        return grpc.insecure_channel(asked.address, options=OPTIONS)
    key, certificate = (Path(path).read_bytes() if path else None for path in (asked.key, asked.certificate))
    named = [("grpc.ssl_target_name_override", asked.name)] if asked.name else []
    credentials = grpc.ssl_channel_credentials(Path(asked.ca).read_bytes(), key, certificate)
    return grpc.secure_channel(asked.address, credentials, options=[*OPTIONS, *named])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m shared.probe", description="Exits 0 iff the health service at ADDRESS reports SERVING."
    )
    parser.add_argument("address", metavar="ADDRESS", help="where the server listens, HOST:PORT")
    parser.add_argument(
        "service", metavar="SERVICE", nargs="?", default="", help="full name; default: the process itself"
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=5.0, help="time for the answer (default %(default)s)"
    )
    tls = parser.add_argument_group("TLS", "files of PEM; without --ca the server is asked in plain text")
    tls.add_argument("--ca", metavar="FILE", default="", help="who signs for the server")
    tls.add_argument("--certificate", metavar="FILE", default="", help="what is shown where the server asks for it")
    tls.add_argument("--key", metavar="FILE", default="", help="the private key of that")
    tls.add_argument("--name", default="", help="the name in the server's certificate, where it is not that of ADDRESS")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Checks the health of a server: `python -m shared.server.probe ADDRESS SERVICE` exits 0 iff SERVICE is SERVING.

The health check of containers. It starts anew every few seconds, so it knows gRPC and nothing of our services.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
# Container runtimes inject the host's proxy settings; a neighbour is not reached through a proxy.
OPTIONS: list[tuple[str, int | str]] = [("grpc.enable_http_proxy", 0)]


SILENCES = 6
"""Checks in a row without an answer until a server counts as hung, half a minute. Other failures count at once."""


def main(arguments: list[str], end: Callable[[], None] | None = None) -> int:
    """Prints the health status, for the runtime's log; returns the exit status. `end`: ends a server that hangs."""
    options = _parser().parse_args(arguments)
    for _ in range(SILENCES if options.end_hung else 1):
        status = _check(options)
        if status is not None:
            return status
    if options.end_hung:
        print(f"{options.address}: hangs")
        (end or end_container)()
    return 1


def _check(options: argparse.Namespace) -> int | None:
    """The exit status; None if the server accepts the connection and does not answer."""
    request = health_pb2.HealthCheckRequest(service=options.service)
    with _channel(options) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        try:
            answer = health.Check(request, timeout=options.timeout)
        except grpc.RpcError as error:
            print(f"{options.address}: {error.code().name}: {error.details()}")
            return None if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else 1
    print(f"{options.address}: {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}")
    return 0 if answer.status == SERVING else 1


def _channel(options: argparse.Namespace) -> grpc.Channel:
    """Raises OSError where a file is not there."""
    if not options.ca:
        return grpc.insecure_channel(options.address, options=OPTIONS)
    key, certificate = (Path(path).read_bytes() if path else None for path in (options.key, options.certificate))
    named = [("grpc.ssl_target_name_override", options.name)] if options.name else []
    credentials = grpc.ssl_channel_credentials(Path(options.ca).read_bytes(), key, certificate)
    return grpc.secure_channel(options.address, credentials, options=[*OPTIONS, *named])


def end_container() -> None:
    """Kills all processes but the container's first, an init, which then ends: engines restart only what has ended.

    Only where an engine put us into a container: our parent is outside, so its number is 0. Elsewhere it would be the
    machine's own processes.
    """
    if os.getppid() == 0:
        os.kill(-1, signal.SIGKILL)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m shared.server.probe", description="Exits 0 iff the health service at ADDRESS reports SERVING."
    )
    parser.add_argument("address", metavar="ADDRESS", help="where the server listens, HOST:PORT")
    parser.add_argument(
        "service", metavar="SERVICE", nargs="?", default="", help="full name; default: the process itself"
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=5.0, help="time for the answer (default %(default)s)"
    )
    parser.add_argument(
        "--end-hung",
        action="store_true",
        help=f"ask {SILENCES} times, and where no answer comes end the container, so that it is restarted",
    )
    tls = parser.add_argument_group("TLS", "files of PEM; without --ca the server is asked in plain text")
    tls.add_argument("--ca", metavar="FILE", default="", help="who signs for the server")
    tls.add_argument("--certificate", metavar="FILE", default="", help="what is shown where the server asks for it")
    tls.add_argument("--key", metavar="FILE", default="", help="the private key of that")
    tls.add_argument("--name", default="", help="the name in the server's certificate, where it is not that of ADDRESS")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

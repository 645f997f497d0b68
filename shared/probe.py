"""Asks a server how it is: `python -m shared.probe ADDRESS SERVICE` exits 0 iff SERVICE is SERVING.

The health check of containers. It starts anew every few seconds, so it knows gRPC and nothing of our services.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
# Container runtimes inject the host's proxy settings; the way to a neighbour leads through none.
OPTIONS = [("grpc.enable_http_proxy", 0)]


SILENCES = 6
"""In a row, until a server counts as hung: half a minute. One that is not there, or not ready, says so at once."""


def main(arguments: list[str], end: Callable[[], None] | None = None) -> int:
    """Prints what health says, for the runtime's log; returns the exit status. `end`: what ends a server that hangs."""
    asked = _parser().parse_args(arguments)
    for _ in range(SILENCES if asked.end_hung else 1):
        status = _ask(asked.address, asked.service, asked.timeout)
        if status is not None:
            return status
    if asked.end_hung:
        print(f"{asked.address}: hangs")
        (end or end_container)()
    return 1


def _ask(address: str, service: str, timeout: float) -> int | None:
    """None where nobody answers, although somebody listens."""
    request = health_pb2.HealthCheckRequest(service=service)
    with grpc.insecure_channel(address, options=OPTIONS) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        try:
            answer = health.Check(request, timeout=timeout)
        except grpc.RpcError as error:
            print(f"{address}: {error.code().name}: {error.details()}")
            return None if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else 1
    print(f"{address}: {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}")
    return 0 if answer.status == SERVING else 1


def end_container() -> None:
    """Kills all processes but the container's first, an init, which then ends: engines restart only what has ended.

    Only where an engine put us into a container: our parent is outside, so its number is 0. Elsewhere it would be the
    machine's own processes.
    """
    if os.getppid() == 0:
        os.kill(-1, signal.SIGKILL)


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
    parser.add_argument(
        "--end-hung",
        action="store_true",
        help=f"ask {SILENCES} times, and where no answer comes end the container, so that it is restarted",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The probe that compose.yaml and the manifests rely on: what it tells of a service, and which one it ends."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from shared.server import probe

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a server that reports `good` as SERVING and `bad` as not."""
    servicer = health.HealthServicer()
    servicer.set("good", health_pb2.HealthCheckResponse.SERVING)
    servicer.set("bad", health_pb2.HealthCheckResponse.NOT_SERVING)
    running = grpc.server(ThreadPoolExecutor(1))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, running)
    port = running.add_insecure_port("127.0.0.1:0")
    running.start()
    yield f"127.0.0.1:{port}"
    running.stop(None).wait()


@pytest.mark.parametrize(("service", "status"), [("good", 0), ("", 0), ("bad", 1), ("unknown", 1)])
def test_the_probe_tells_by_its_status_and_ends_no_server_that_answers(server: str, service: str, status: int) -> None:
    """A frontend without a worker is not ready, and does not hang."""
    ended: list[str] = []
    end = partial(ended.append, service)
    assert status == probe.main([server, service, "--timeout", "240", "--end-hung"], end)
    assert not ended


def test_the_probe_fails_where_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert probe.main([f"127.0.0.1:{silent.getsockname()[1]}", "good", "--timeout", "0.2"]) == 1


def test_the_probe_ends_a_server_that_hangs() -> None:
    """It listens, and says nothing, six times in a row."""
    ended = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert probe.main([address, "good", "--timeout", "0.2", "--end-hung"], lambda: ended.append(address)) == 1
    assert ended == [address]


def test_the_probe_ends_no_server_that_is_not_there() -> None:
    ended: list[None] = []
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    assert probe.main([f"127.0.0.1:{port}", "good", "--end-hung"], lambda: ended.append(None)) == 1
    assert not ended


def test_the_probe_ends_nothing_outside_a_container() -> None:
    """Its parent would be outside of one; here it is seen, and this test lives on."""
    probe.end_container()


def test_the_probe_starts_light() -> None:
    """It runs every ten seconds beside a model: no torch, no numpy."""
    code = "import sys, shared.server.probe; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0

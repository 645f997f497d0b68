"""deploy/proxy/haproxy.cfg: its health check as the bytes that it sends, and HAProxy's own opinion."""

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from shared.server.options import PUBLIC_SERVICES

ROOT = Path(__file__).resolve().parents[2]
CONFIG = (ROOT / "deploy/proxy/haproxy.cfg").read_text()
SENT = [bytes.fromhex(each) for each in re.findall(r"tcp-check send-binary ([0-9a-f]+)", CONFIG)]
[EXPECTED] = [bytes.fromhex(each) for each in re.findall(r"tcp-check expect binary ([0-9a-f]+)", CONFIG)]
SERVICE = "selvage.v1.EmbeddingService"
Status = health_pb2.HealthCheckResponse


@pytest.fixture
def server() -> Iterator[tuple[health.HealthServicer, int]]:
    servicer = health.HealthServicer()
    running = grpc.server(ThreadPoolExecutor(1))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, running)
    port = running.add_insecure_port("127.0.0.1:0")
    running.start()
    yield servicer, port
    running.stop(None).wait()


def passes(port: int, seconds: float) -> bool:
    """Whether the check does: all is sent at once, and what comes within that time is searched, as HAProxy does."""
    seen = b""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.sendall(b"".join(SENT))
        try:
            while EXPECTED not in seen and (more := connection.recv(4096)):
                seen += more
        except TimeoutError:
            return False
    return EXPECTED in seen


@pytest.mark.parametrize(
    ("status", "good"), [(Status.SERVING, True), (Status.NOT_SERVING, False), (Status.UNKNOWN, False), (None, False)]
)
def test_the_check_passes_iff_the_service_serves(
    server: tuple[health.HealthServicer, int], status: Any, good: bool
) -> None:
    """Bytes of HTTP/2 and protobuf, to a real gRPC server; None: it does not know the service."""
    servicer, port = server
    assert SERVICE in PUBLIC_SERVICES
    if status is not None:
        servicer.set(SERVICE, status)
    assert passes(port, 120.0 if good else 0.3) is good  # what is good comes in milliseconds


def test_the_proxy_serves_and_finds_frontends_where_compose_has_them() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    for door in ("", "HTTP_"):
        listen = services["frontend"]["environment"][f"SELVAGE_FRONTEND_{door}LISTEN"].rpartition(":")[2]
        assert re.search(rf"^  server-template replica \d+ frontend:{listen}$", CONFIG, re.M)
    grpc_port, http_port = (each.rpartition(":")[2] for each in services["proxy"]["ports"])
    assert f"  bind :{grpc_port} proto h2\n" in CONFIG
    assert f"  bind :{http_port} proto h1 " in CONFIG


@pytest.mark.parametrize("section", ["grpc", "http"])
def test_a_caller_cannot_choose_its_key(section: str) -> None:
    """Frontends believe the proxy's header: with a key of its own for each call, a caller would have all shares."""
    [rules] = re.findall(rf"^frontend {section}\n((?:  .*\n)+)", CONFIG, re.M)
    keys = [rule.strip() for rule in rules.splitlines() if "selvage-key" in rule and not rule.strip().startswith("#")]
    assert keys == ["http-request set-header selvage-key %[src]"]


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="there is no haproxy; Debian's package has it")
def test_haproxy_takes_it() -> None:
    answer = subprocess.run(
        ["haproxy", "-c", "-f", str(ROOT / "deploy/proxy/haproxy.cfg")], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert "WARNING" not in answer.stderr

"""Why a worker cannot be reached, told as what it is: over real TLS, with certificates of every wrong sort."""

import asyncio
import datetime
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from frontend_service.workers.link import WorkerLink
from frontend_service.workers.transport import WorkerTransport
from support.certificates import Authority, Files
from support.references import eventually

NAME, OTHER = "selvage.test", "another.test"
YESTERDAY = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
Start = Callable[[grpc.ServerCredentials | None], Any]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts a server that knows no method, and returns its address."""
    servers: list[grpc.aio.Server] = []

    async def started(credentials: grpc.ServerCredentials | None) -> str:
        server = grpc.aio.server()
        address = "127.0.0.1:0"
        port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        await server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield started
    for server in servers:
        await server.stop(0)


def credentials(files: Files, clients: Authority | None = None) -> grpc.ServerCredentials:
    """Those of a worker; with `clients` it wants a certificate that this authority signed."""
    pair = (files.key.read_bytes(), files.certificate.read_bytes())
    roots = clients.file.read_bytes() if clients else None
    return grpc.ssl_server_credentials([pair], roots, require_client_auth=clients is not None)


async def why(address: str, transport: WorkerTransport, host: str = NAME) -> str:
    """Why a link to this worker is not attached."""
    link = WorkerLink(address, host, transport, ThreadPoolExecutor(1), lambda: None)
    attaching = asyncio.create_task(link.stay_attached())
    try:
        await eventually(lambda: link.why != "no worker has answered yet")
    finally:
        attaching.cancel()
    return link.why


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def test_another_name(start: Start, ours: Authority) -> None:
    address = await start(credentials(ours.files("worker", NAME)))
    reason = f"the certificate of the worker at {address} is not for {OTHER!r}, the name or address in --worker"
    assert await why(address, WorkerTransport(ca=str(ours.file)), OTHER) == reason


async def test_another_authority(start: Start, ours: Authority, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    theirs = Authority(tmp_path / "theirs")
    address = await start(credentials(theirs.files("worker", NAME)))
    reason = await why(address, WorkerTransport(ca=str(ours.file)))
    assert reason.startswith(f"the certificate of the worker at {address} is not trusted: unable to get local issuer")
    assert "--worker-ca" in reason


async def test_a_certificate_that_ended(start: Start, ours: Authority) -> None:
    address = await start(credentials(ours.files("worker", NAME, ends=YESTERDAY)))
    assert "is not trusted: certificate has expired" in await why(address, WorkerTransport(ca=str(ours.file)))


async def test_plain_text_for_tls_and_the_other_way_round(start: Start, ours: Authority) -> None:
    plain, secure = await start(None), await start(credentials(ours.files("worker", NAME)))
    assert await why(plain, WorkerTransport(ca=str(ours.file))) == (
        f"the worker at {plain} speaks plain text; --worker-ca asks for TLS"
    )
    assert "it may want TLS: --worker-ca" in await why(secure, WorkerTransport())


async def test_a_proxy_before_a_worker_that_wants_a_certificate(start: Start, ours: Authority) -> None:
    address = await start(credentials(ours.files("worker", NAME), clients=ours))
    assert "it may want a certificate of its clients" in await why(address, WorkerTransport(ca=str(ours.file)))


async def test_nobody() -> None:
    with socket.socket() as bound:  # it is nobody else's, and does not listen
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        assert await why(address, WorkerTransport()) == f"nothing listens at {address}"

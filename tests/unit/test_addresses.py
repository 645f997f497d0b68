"""An address that cannot be bound ends the process with status 2 and a line: why, who may have it, which flag."""

import errno
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from frontend_service.api.http.port import HttpServer
from frontend_service.settings import FrontendSettings
from shared import command as binding
from shared import reporting
from shared.server.calls import Calls
from shared.server.grpc_server import Server

ADVICE = (
    "something listens there already, perhaps another worker or frontend (make serve, make demo, docker compose): "
    "`ss -ltnp` tells what. Stop it, or name another port by "
)


@pytest.fixture
def taken() -> Iterator[str]:
    """An address at which something listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def grpc_server(address: str) -> None:
    """Starts the gRPC server of both services."""
    server = Server([], Calls(timeout=600), threads=ThreadPoolExecutor(1), connection_age=False)
    await server.start(address)


async def http_server(address: str) -> None:
    """Starts the HTTP server of a frontend."""
    app: Any = SimpleNamespace(local_routes=frozenset())
    await HttpServer(app, None, 1.0).start(address)


async def metrics(address: str) -> None:
    """Starts the server of metrics."""
    reporting.page(FrontendSettings.read(["--metrics", address]))


@pytest.mark.parametrize(
    ("start", "flag"), [(grpc_server, "--listen"), (http_server, "--http-listen"), (metrics, "--metrics")]
)
async def test_a_port_that_is_taken_is_told(
    start: Any, flag: str, taken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alike by all servers; gRPC itself tells no reason."""
    with pytest.raises(SystemExit) as ended:
        await start(taken)
    assert ended.value.code == 2
    told = f"{flag} = '{taken}': the address cannot be bound: Address already in use; {ADVICE}{flag}\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            OSError(errno.EACCES, "No"),
            ": No; ports below 1024 are for root alone: name a higher one by --listen",
        ),
        (
            OSError(errno.EADDRNOTAVAIL, "Not here"),
            ": Not here; this machine has no such address: name one that it has by --listen, or 0.0.0.0 for all",
        ),
        (socket.gaierror(socket.EAI_NONAME, "No such name"), ": No such name"),
        (None, ""),
    ],
)
def test_other_reasons_are_told(
    error: OSError | None, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As far as there are any: an address that can be bound by now has none."""
    monkeypatch.setattr(binding, "_error_of_binding", lambda _: error)
    with pytest.raises(SystemExit) as ended:
        binding.refuse_address("--listen", "box:50051")
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"--listen = 'box:50051': the address cannot be bound{told}\n"

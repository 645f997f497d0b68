"""A guarded frontend of a worker, and released clients, for the tests of this folder."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from frontend_service.access.api_keys import hashed
from harness.member import ServiceProcess
from harness.stack import Stack
from selvage.v1.embedding_pb2 import EmbedRequest
from shared.server.options import PUBLIC_SERVICES
from support.http_calls import APIS, KEY
from support.programs import Program, program, python_of
from support.references import Calls, dense


@pytest.fixture(scope="session")
async def clients(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Program]:
    """With a home of their own: some look for keys and settings there."""
    if not python_of("http").exists():
        pytest.skip("`make clients` sets up the clients; it needs an index")
    home = str(tmp_path_factory.mktemp("home"))
    async with program("http", {"HOME": home, "HF_HUB_DISABLE_TELEMETRY": "1"}) as running:
        yield running


@pytest.fixture(scope="session")
def url(tiny: Stack) -> str:
    return tiny.frontends[0].http_url


@pytest.fixture(scope="session")
def expected(tiny: Stack) -> Callable[..., Awaitable[np.ndarray]]:
    """[texts, dimensions] float32 of an Embed's fields, by gRPC."""

    async def embedded(**asked: Any) -> np.ndarray:
        return dense(await Calls(tiny.channel).embedding.Embed(EmbedRequest(**asked)))

    return embedded


@pytest.fixture(scope="session")
async def guarded(tiny: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServiceProcess]:
    """Another frontend of the same worker: who has the key may ask one thing at a time."""
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(f'[[keys]]\nname = "search"\nsha256 = "{hashed(KEY)}"\nrequests_at_once = 1\n')
    flags = {"worker": tiny.worker.address, "api-keys": keys, "log-level": "debug", **APIS}
    member = ServiceProcess("frontend_service", PUBLIC_SERVICES, flags)
    await member.start()
    await member.wait_ready()
    yield member
    await member.stop()

"""deploy/proxy/haproxy.cfg in front of real frontends, where there is a HAProxy; `make compose-test` runs its image."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import grpc
import pytest

from harness.stack import Stack, stack
from selvage.v1 import model_pb2
from shared.server.rpc import channel_options
from support.references import Calls, eventually
from support.scraping import scrape
from support.traffic import traffic

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="there is no haproxy; Debian's package has it"),
]
CONFIG = (Path(__file__).parents[2] / "deploy/proxy/haproxy.cfg").read_text()
FOUND, FOUND_HTTP = (f"  server-template replica 32 frontend:{port}\n" for port in (50051, 8080))
APIS = {"apis": "grpc,tei,http"}
BY_NAME = " resolvers engine init-addr none"


@asynccontextmanager
async def proxy(pair: Stack, folder: Path) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to it. The frontends are named one by one, since only an engine's DNS has them all by one name."""
    servers = [f"  server replica{number} {each.address}\n" for number, each in enumerate(pair.frontends)]
    by_http = [f"  server replica{number} {each.http_address}\n" for number, each in enumerate(pair.frontends)]
    changes = {
        FOUND: "".join(servers),
        FOUND_HTTP: "".join(by_http),
        BY_NAME: "",
        "bind :50051": f"bind unix@{folder}/grpc",
        "bind :8080": f"bind unix@{folder}/http",
        "bind :8404": f"bind unix@{folder}/status",
    }
    config = CONFIG
    for old, new in changes.items():
        assert config.count(old) == (2 if old == BY_NAME else 1)
        config = config.replace(old, new)
    (folder / "haproxy.cfg").write_text(config)
    process = await asyncio.create_subprocess_exec("haproxy", "-db", "-f", str(folder / "haproxy.cfg"))
    try:
        options = [*channel_options(), ("grpc.default_authority", "selvage")]
        async with grpc.aio.insecure_channel(f"unix:{folder}/grpc", options=options) as channel:
            await eventually(lambda: (folder / "grpc").exists())
            yield channel
    finally:
        process.terminate()
        await process.wait()


async def answered(pair: Stack) -> list[int]:
    """Calls by frontend."""
    pages = [await scrape(frontend) for frontend in pair.frontends]
    return [int(page.total("grpc_server_handled_total", grpc_code="OK", grpc_method="Embed")) for page in pages]


async def test_a_frontend_that_drains_loses_no_call(tmp_path: Path) -> None:
    """Nor one that comes back: without retries every call is answered, and by both in the end."""
    settings = APIS | {"drain-delay": 8, "metrics": "127.0.0.1:0"}
    async with (
        stack("random:tiny-bert", frontends=2, frontend=settings) as pair,
        proxy(pair, tmp_path) as channel,
        traffic(channel) as running,
    ):
        await running.more(20)
        assert await pair.frontends[0].stop() == 0
        await running.more(20)
        await pair.frontends[0].restart()

        async def both_answer() -> bool:
            await running.more(20)
            return min(await answered(pair)) > 5

        await eventually(both_answer)
    assert (running.wrong, running.hung) == ([], [])
    assert set(running.outcomes) == {"OK"}


async def test_http_goes_to_frontends_that_serve(tmp_path: Path) -> None:
    """Its own port of the proxy; 503 where there is none."""
    async with (
        stack("random:tiny-bert", frontend=APIS | {"http-host": "selvage"}) as pair,
        proxy(pair, tmp_path),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(f"{tmp_path}/http")) as session,
    ):

        async def answers(status: int) -> bool:
            async with session.post("http://selvage/v1/embeddings", json={"input": "a"}) as reply:
                return reply.status == status

        await eventually(lambda: answers(200))
        await pair.frontends[0].stop()
        await eventually(lambda: answers(503))


async def test_without_a_frontend_callers_are_told_when_to_ask_again(tmp_path: Path) -> None:
    """By gRPC's own words, UNAVAILABLE and a pushback."""
    async with stack("random:tiny-bert", frontend=APIS) as pair, proxy(pair, tmp_path) as channel:
        await pair.frontends[0].stop()
        told: list[grpc.aio.AioRpcError] = []

        async def refused_by_the_proxy() -> bool:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await Calls(channel).model.GetModel(model_pb2.GetModelRequest(), timeout=5)
            told.append(raised.value)
            return raised.value.details() == "no frontend is ready"

        await eventually(refused_by_the_proxy)
    assert told[-1].code() is grpc.StatusCode.UNAVAILABLE
    assert dict(told[-1].trailing_metadata() or ())["grpc-retry-pushback-ms"] == "1000"

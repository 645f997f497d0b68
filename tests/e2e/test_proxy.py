"""deploy/proxy/haproxy.cfg in front of real frontends, where there is a HAProxy; `make compose-test` runs its image.

What one connection of HTTP/2 may send to cost a server far more than itself is written frame by frame (RFC 9113,
RFC 7541), bounded in count and bytes, only for servers of the tests themselves on loopback.
"""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import grpc
import pytest

from harness.stack import Stack, stack
from selvage.v1 import model_pb2
from shared.server.options import channel_options
from support.random_models import random_model
from support.references import Calls, eventually
from support.scraping import forget_peak, memory, scrape
from support.traffic import traffic

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="there is no haproxy; Debian's package has it"),
]
CONFIG = (Path(__file__).parents[2] / "deploy/proxy/haproxy.cfg").read_text()
FOUND, FOUND_HTTP = (f"  server-template replica 32 frontend:{port}\n" for port in (50051, 8080))
APIS = {"http-listen": "127.0.0.1:0"}
METHOD = "Detokenize"
"""All attacks call it, and nobody else, so that the calls which reach a frontend can be counted."""
FROM = ("127.0.0.2", 0)
"""Another address than that of honest callers."""
HEADERS, RST_STREAM, SETTINGS, CONTINUATION = 1, 3, 4, 9
END_STREAM, END_HEADERS = 1, 4
FRAME_BYTES = 16_000
START = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


START += frame(SETTINGS)


def literal(name: bytes, value: bytes, *, indexed: bool = False) -> bytes:
    """A header as it is; `indexed`: from then on index 62 stands for it."""
    return (b"\x40" if indexed else b"\x00") + _string(name) + _string(value)


def _string(data: bytes) -> bytes:
    if len(data) < 127:
        return bytes([len(data)]) + data
    length, rest = bytearray([127]), len(data) - 127
    while rest >= 128:
        length.append(rest % 128 | 128)
        rest //= 128
    return bytes([*length, rest]) + data


CALL = b"\x83\x86" + b"".join(
    literal(name, value)
    for name, value in {
        b":path": f"/selvage.v1.ModelService/{METHOD}".encode(),
        b":authority": b"selvage",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
    }.items()
)
"""The headers of a POST over http."""


def compression_bomb(calls: int, references: int) -> Iterator[bytes]:
    """Calls whose headers repeat one of 4,000 bytes so many times, for a byte each."""
    yield START
    for number in range(calls):
        block = CALL + (b"" if number else literal(b"x", b"a" * 4000, indexed=True))
        block += b"\xbe" * references
        pieces = [block[start : start + FRAME_BYTES] for start in range(0, len(block), FRAME_BYTES)]
        for place, piece in enumerate(pieces):
            kind, flags = (CONTINUATION, 0) if place else (HEADERS, END_STREAM)
            yield frame(kind, flags | END_HEADERS * (place == len(pieces) - 1), 2 * number + 1, piece)


def rapid_resets(calls: int) -> Iterator[bytes]:
    """Calls that are taken back at once (CVE-2023-44487)."""
    yield START
    for number in range(calls):
        stream = 2 * number + 1
        yield frame(HEADERS, END_HEADERS, stream, CALL) + frame(RST_STREAM, 0, stream, bytes(3) + b"\x08")


def empty_continuations(frames: int) -> Iterator[bytes]:
    """Headers that do not end, though nothing more is in them."""
    yield START + frame(HEADERS, END_STREAM, 1, CALL)
    for _ in range(frames // 1000):
        yield frame(CONTINUATION, 0, 1) * 1000


@asynccontextmanager
async def sent(address: str, attack: Iterator[bytes]) -> AsyncIterator[int]:
    """Sends it all, or until the server ends the connection, which else stays open within; gives the bytes sent."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=FROM)
    reading, size = asyncio.create_task(_read_all(reader)), 0
    with suppress(ConnectionError):
        for chunk in attack:
            writer.write(chunk)
            await writer.drain()
            size += len(chunk)
    yield size
    reading.cancel()
    writer.close()


async def _read_all(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(65536):
            pass


ATTACKS = {
    "compression bomb": (compression_bomb(calls=150, references=15_800), 0),
    "small compression bombs": (compression_bomb(calls=5_000, references=3), 0),
    "rapid resets": (rapid_resets(calls=20_000), 1_001),
    "empty CONTINUATION frames": (empty_continuations(frames=200_000), 0),
}
"""Each with the most calls of it that may reach a frontend."""
GROWTH = 32 * 1024 * 1024
"""Most bytes of memory that an attack may cost a frontend."""
BY_NAME = " resolvers engine init-addr none"


@asynccontextmanager
async def proxy(pair: Stack, folder: Path) -> AsyncIterator[tuple[grpc.aio.Channel, str]]:
    """A channel to it, and its address.

    The frontends are named one by one, since only an engine's DNS has them all by one name.
    """
    servers = [f"  server replica{number} {each.address}\n" for number, each in enumerate(pair.frontends)]
    by_http = [f"  server replica{number} {each.http_address}\n" for number, each in enumerate(pair.frontends)]
    listener = socket.create_server(("127.0.0.1", 0))  # by unix sockets callers would have no address
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    changes = {
        FOUND: "".join(servers),
        FOUND_HTTP: "".join(by_http),
        BY_NAME: "",
        "bind :50051": f"bind fd@{listener.fileno()}",
        "bind :8080": f"bind unix@{folder}/http",
        "bind :8404": f"bind unix@{folder}/status",
    }
    config = CONFIG
    for old, new in changes.items():
        assert config.count(old) == (2 if old == BY_NAME else 1)
        config = config.replace(old, new)
    (folder / "haproxy.cfg").write_text(config)
    with listener:
        command = ("haproxy", "-db", "-f", str(folder / "haproxy.cfg"))
        process = await asyncio.create_subprocess_exec(*command, pass_fds=[listener.fileno()])
    try:
        async with grpc.aio.insecure_channel(address, options=channel_options()) as channel:
            await eventually(lambda: (folder / "http").exists())
            yield channel, address
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
        stack(random_model("tiny-bert"), frontends=2, frontend=settings) as pair,
        proxy(pair, tmp_path) as (channel, _),
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
        stack(random_model("tiny-bert"), frontend={"http-listen": "0.0.0.0:0"}) as pair,
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
    async with stack(random_model("tiny-bert"), frontend=APIS) as pair, proxy(pair, tmp_path) as (channel, _):
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


@pytest.mark.parametrize(("attack", "calls"), ATTACKS.values(), ids=ATTACKS)
async def test_what_one_connection_may_do_to_a_frontend_ends_at_the_proxy(
    tmp_path: Path, attack: Iterator[bytes], calls: int
) -> None:
    """Frontends see next to nothing of it, and other callers are answered meanwhile."""
    async with (
        stack(random_model("tiny-bert"), frontend=APIS | {"metrics": "127.0.0.1:0"}) as pair,
        proxy(pair, tmp_path) as (channel, address),
        traffic(channel) as running,
    ):
        [frontend] = pair.frontends
        await running.more(50)
        before = memory(frontend)
        forget_peak(frontend)
        async with sent(address, attack) as size:
            await running.more(300)
        assert size > 0
        page = await scrape(frontend)
        assert page.total("grpc_server_started_total", grpc_method=METHOD) <= calls
        assert memory(frontend, "VmHWM") - before < GROWTH
    assert (running.wrong, running.hung) == ([], [])
    assert set(running.outcomes) == {"OK"}


async def test_calls_that_are_answered_are_not_bounded(tmp_path: Path) -> None:
    """Half as many again as an address may have without an answer, within what is counted for that."""
    async with stack(random_model("tiny-bert"), frontend=APIS) as pair, proxy(pair, tmp_path) as (channel, _):
        calls, request = Calls(channel), model_pb2.GetModelRequest()
        for _ in range(15):
            assert all(await asyncio.gather(*[calls.model.GetModel(request, wait_for_ready=True) for _ in range(100)]))

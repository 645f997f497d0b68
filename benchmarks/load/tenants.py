"""Callers with API keys: honest ones that are measured, and one that takes all it can get.

`python -m benchmarks.load.tenants honest ...` prints the figures of its callers as JSON; `... greedy ...` takes what
`--way` names until it is ended.
"""

import argparse
import asyncio
import json
import os
import random
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import grpc

from benchmarks.load import outcome
from benchmarks.load.loops import BACKOFF, closed
from benchmarks.load.outcome import OK
from benchmarks.load.target import HTTP_STATUSES
from benchmarks.workloads import MINILM, text
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedStreamRequest
from shared.server.rpc import channel_options
from tei.v1 import tei_pb2

APIS = ("grpc", "tei", "http")
WAYS = ("streams", "connections", "bytes", "tokens")
IN_FLIGHT = 4
"""Calls that an honest caller has in flight."""
TOKENS, LONG = 64, 250
"""Tokens of an honest text, and of one of the greedy caller."""
LARGE, TEXT_BYTES, MANY = 60, 1_000_000, 256
"""Texts of the largest requests, the bytes of each, and the texts of requests with many tokens."""
GREEDY_STREAMS, GREEDY_CONNECTIONS, GREEDY_CALLS = 64, 4500, 4
"""What the greedy caller tries to have at the same time."""
REOPENED = 50
"""Connections that it opens at a time, once it has had all."""
GREEDY_ADDRESS = "127.0.0.2"
"""The address of its idle connections; every other caller has 127.0.0.1."""
EMBED = {"grpc": "/selvage.v1.EmbeddingService/Embed", "tei": "/tei.v1.Embed/Embed"}
HTTP_HEADERS = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """An API and where it is served: HOST:PORT."""

    name: str
    address: str

    def request(self, texts: Sequence[str], *, cut: bool = False) -> bytes:
        """A request for the vectors of texts; over tei.v1, where an Embed has one text, several are ranked."""
        if self.name == "grpc":
            return EmbedRequest(texts=texts, truncate=cut).SerializeToString()
        if self.name == "http":
            return json.dumps({"inputs": list(texts), "truncate": cut}).encode()
        if len(texts) == 1:
            return tei_pb2.EmbedRequest(inputs=texts[0], truncate=cut).SerializeToString()
        return tei_pb2.RerankRequest(query="a", texts=texts, truncate=cut).SerializeToString()

    def method(self, texts: int) -> str:
        """The method, or path, of a request with so many texts."""
        if self.name == "http":
            return f"http://{self.address}/embed"
        return "/tei.v1.Rerank/Rerank" if self.name == "tei" and texts > 1 else EMBED[self.name]

    def streamed(self, texts: Sequence[str]) -> bytes:
        """A message of a stream."""
        if self.name == "tei":
            return self.request(texts)
        return EmbedStreamRequest(id=1, request=EmbedRequest(texts=texts)).SerializeToString()

    @property
    def stream_method(self) -> str:
        return f"{EMBED[self.name]}Stream"


class Caller:
    """One caller: its key, and a connection unless each call has its own."""

    def __init__(self, api: Api, key: str, channel: Any, session: Any, lost: type[Exception] = OSError) -> None:
        """`session`: of aiohttp, or None; `lost`: the exception that a broken connection raises."""
        self._api, self._channel, self._session, self._lost = api, channel, session, lost
        self._authorization = (("authorization", f"Bearer {key}"),)

    @classmethod
    @asynccontextmanager
    async def opened(cls, api: Api, key: str) -> AsyncIterator["Caller"]:
        """Opens a connection of its own."""
        if api.name == "http":
            import aiohttp  # may not be installed

            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
                yield cls(api, key, None, session, aiohttp.ClientError)
            return
        async with grpc.aio.insecure_channel(api.address, options=channel_options()) as channel:
            yield cls(api, key, channel, None)

    async def call(self, raw: bytes, texts: int) -> str:
        """Makes a call and gives its status."""
        method = self._api.method(texts)
        if self._session is not None:
            headers = HTTP_HEADERS | dict(self._authorization)
            try:
                async with self._session.post(method, data=raw, headers=headers) as response:
                    await response.read()
            except (OSError, self._lost) as error:
                return type(error).__name__
            return HTTP_STATUSES.get(response.status, f"HTTP {response.status}")
        return await _status(self._channel.unary_unary(method)(raw, metadata=self._authorization, timeout=30))

    async def stream(self, raw: bytes, keeps: Callable[[], bool]) -> str:
        """Opens a stream; sends a message and reads its reply, again while `keeps` says so. Gives the status."""

        async def talk() -> None:
            call = self._channel.stream_stream(self._api.stream_method)(metadata=self._authorization, timeout=60)
            while True:
                await call.write(raw)
                if await call.read() is grpc.aio.EOF or not keeps():
                    break
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass

        return await _status(talk())


async def _status(work: Any) -> str:
    try:
        await work
    except grpc.aio.AioRpcError as error:
        return error.code().name
    except asyncio.InvalidStateError:  # a stream that was refused before it was written to
        return "RESOURCE_EXHAUSTED"
    return OK


class HonestTarget:
    """Callers that each wait for their answers, with the same short text. `way`: what each call has of its own."""

    def __init__(self, api: Api, way: str, callers: dict[str, Caller]) -> None:
        self._api, self._way, self._callers = api, way, callers
        texts = [text(MINILM, TOKENS, random.Random(1))]
        self._raw, self._message = api.request(texts), api.streamed(texts) if api.name != "http" else b""

    async def call(self, request: int, sender: tuple[tuple[str, str], ...]) -> str:
        key = sender[0][1]
        if self._way == "streams":
            return await self._callers[key].stream(self._message, lambda: False)
        if self._way == "connections":
            async with Caller.opened(self._api, key) as caller:
                return await caller.call(self._raw, 1)
        return await self._callers[key].call(self._raw, 1)


async def honest(api: Api, way: str, keys: Sequence[str], seconds: float) -> dict[str, float]:
    """Runs a caller for each key; gives their figures, without those of the first second."""
    async with AsyncExitStack() as opened:
        callers = {key: await opened.enter_async_context(Caller.opened(api, key)) for key in keys}
        start, senders = asyncio.get_running_loop().time() + 1, [(("key", key),) for key in keys]
        target, clients = HonestTarget(api, way, callers), IN_FLIGHT * len(keys)
        calls = await closed(target, repeat(0), senders, clients, start + seconds)
    window, span = outcome.counted(calls, start, start + seconds, is_open=False)
    failed = sum(call.status != OK for call in window)
    return outcome.figures(window, span, [TOKENS]) | {"not answered, %": 100 * failed / max(1, len(window))}


async def greedy(api: Api, way: str, key: str) -> None:
    """Takes what there is, for ever; after a refusal it waits as long as any client does."""
    if way == "connections":
        await _lie_idle(api)
    draw = random.Random(2)
    async with Caller.opened(api, key) as caller:
        if way == "streams":
            message = api.streamed([text(MINILM, LONG, draw)])
            await _again([lambda: caller.stream(message, lambda: True)] * GREEDY_STREAMS)
        words = text(MINILM, LONG, draw)
        texts = [words] * MANY if way == "tokens" else [(words + " ") * (TEXT_BYTES // (len(words) + 1))] * LARGE
        raw = api.request(texts, cut=True)
        await _again([lambda: caller.call(raw, len(texts))] * GREEDY_CALLS)


async def _again(works: Sequence[Callable[[], Any]]) -> None:
    """Does all at the same time, each again and again."""

    async def once_more(work: Callable[[], Any]) -> None:
        while True:
            if await work() != OK:
                await asyncio.sleep(BACKOFF)

    await asyncio.gather(*map(once_more, works))


async def _lie_idle(api: Api) -> None:
    """Keeps idle connections open, and opens those again that were ended."""
    host, _, port = api.address.rpartition(":")
    connections: list[socket.socket] = []
    at_once = GREEDY_CONNECTIONS
    while True:
        connections = [connection for connection in connections if _is_open(connection)]
        for _ in range(min(at_once, GREEDY_CONNECTIONS - len(connections))):
            connection = socket.socket()
            connection.bind((GREEDY_ADDRESS, 0))
            connection.setblocking(False)
            connection.connect_ex((host, int(port)))
            connections.append(connection)
        at_once = REOPENED
        await asyncio.sleep(BACKOFF)


def _is_open(connection: socket.socket) -> bool:
    try:
        if connection.recv(4096):
            return True
    except BlockingIOError:
        return True
    except OSError:
        pass
    connection.close()
    return False


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.tenants", description=__doc__)
    parser.add_argument("role", choices=("honest", "greedy"))
    parser.add_argument("--api", choices=APIS, required=True)
    parser.add_argument("--address", required=True, help="HOST:PORT of that API")
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--keys", required=True, help="with commas between; a caller each")
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    api, keys = Api(name=options.api, address=options.address), options.keys.split(",")
    if options.role == "greedy":
        os.nice(19)
        asyncio.run(greedy(api, options.way, keys[0]))
    else:
        print(json.dumps(asyncio.run(honest(api, options.way, keys, options.seconds))))


if __name__ == "__main__":
    main()

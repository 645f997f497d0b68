"""Where requests go: gRPC or HTTP. Bodies are bytes made beforehand, replies stay bytes."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import aiohttp
import grpc

from benchmarks.load.loops import Target
from benchmarks.load.tally import OK, Reply
from selvage.v1 import embedding_pb2, ranking_pb2
from shared.codec import duration_from_pb
from shared.rpc import channel_options

EMBED = "/selvage.v1.EmbeddingService/Embed"
RERANK = "/selvage.v1.RankingService/Rerank"
SCORE = "/selvage.v1.RankingService/Score"
RESPONSES: dict[str, Any] = {
    EMBED: embedding_pb2.EmbedResponse,
    RERANK: ranking_pb2.RerankResponse,
    SCORE: ranking_pb2.ScoreResponse,
}
PARTS = ("tokenize", "queue", "transfer", "compute", "postprocess")
"""What our replies tell of their time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcAddress:
    """A method, such as /selvage.v1.EmbeddingService/Embed, of one server or more: client n asks server n, cyclic."""

    servers: tuple[str, ...]
    method: str
    counts: ClassVar[bool] = True

    def tokens(self, body: bytes) -> int:
        """What the reply says was computed. Raises KeyError for a method whose replies do not say it."""
        return int(RESPONSES[self.method].FromString(body).usage.prompt_tokens)

    def times(self, body: bytes) -> tuple[float, ...]:
        """The `PARTS` that the reply tells, in seconds."""
        timing = RESPONSES[self.method].FromString(body).timing
        return tuple(duration_from_pb(getattr(timing, part)) for part in PARTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAddress:
    """URLs that take JSON by POST, cyclic as above. Not all peers count tokens: some tell letters, some nothing."""

    servers: tuple[str, ...]
    counts: ClassVar[bool] = False

    def tokens(self, body: bytes) -> int:
        """What the reply says was computed, as OpenAI's and Jina's shapes do; 0 where it does not."""
        told = json.loads(body)
        usage = told.get("usage") or {} if isinstance(told, dict) else {}
        return int(usage.get("prompt_tokens") or usage.get("total_tokens") or 0)

    def times(self, body: bytes) -> tuple[float, ...]:
        """Peers tell none."""
        return ()


Address = GrpcAddress | HttpAddress


class GrpcTarget:
    """One channel a server."""

    def __init__(self, channels: Sequence[grpc.aio.Channel], method: str, bodies: Sequence[bytes], timeout: float):
        self._calls: list[Any] = [channel.unary_unary(method) for channel in channels]  # no serialisers: bytes
        self._bodies = bodies
        self._timeout = timeout

    async def call(self, index: int, lane: int) -> Reply:
        try:
            body = await self._calls[lane % len(self._calls)](self._bodies[index], timeout=self._timeout)
        except grpc.aio.AioRpcError as error:
            return Reply(status=error.code().name)
        return Reply(status=OK, body=body)


class HttpTarget:
    """One session, as many connections as clients."""

    def __init__(self, session: aiohttp.ClientSession, urls: Sequence[str], bodies: Sequence[bytes]) -> None:
        self._session = session
        self._urls = urls
        self._bodies = bodies

    async def call(self, index: int, lane: int) -> Reply:
        try:
            async with self._session.post(self._urls[lane % len(self._urls)], data=self._bodies[index]) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            return Reply(status=type(error).__name__)
        return Reply(status=OK if response.status == 200 else f"HTTP {response.status}", body=body)


@asynccontextmanager
async def opened(address: Address, bodies: Sequence[bytes], timeout: float) -> AsyncIterator[Target]:
    """The target of an address, closed at the end; every call ends after `timeout` seconds."""
    async with AsyncExitStack() as cleanup:
        if isinstance(address, HttpAddress):
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=timeout),
                headers={"Content-Type": "application/json"},
            )
            yield HttpTarget(await cleanup.enter_async_context(session), address.servers, bodies)
            return
        channels = [
            await cleanup.enter_async_context(grpc.aio.insecure_channel(server, options=channel_options()))
            for server in address.servers
        ]
        yield GrpcTarget(channels, address.method, bodies, timeout)

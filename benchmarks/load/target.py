"""Targets of a load: gRPC with deadlines, or a peer over HTTP. Messages are made beforehand."""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from typing import Any, Self

import grpc

from benchmarks.load.loops import EXPIRED, OK, REFUSED, LoadFailed, Target
from benchmarks.peers import infinity
from benchmarks.workloads import Workload, instructed, text
from selvage.v1 import embedding_pb2, ranking_pb2, vectors_pb2
from shared.server.options import channel_options
from tei.v1 import tei_pb2

EMBED, RERANK = "/selvage.v1.EmbeddingService/Embed", "/selvage.v1.RankingService/Rerank"
TEI, TEI_EMBED = "tei:", "/tei.v1.Embed/Embed"
"""The beginning of addresses that are called by tei.v1, and its method."""
HTTP_STATUSES = {200: OK, 429: REFUSED, 503: REFUSED, 504: EXPIRED}
FIRST = 60.0
"""Least timeout of the first call in seconds; the deadline of later calls may be shorter."""


def texts_of(workload: Workload, seed: int) -> list[list[str]]:
    """Draws the texts of each request, with exactly the workload's tokens for MiniLM and `random:` shapes."""
    draw, late = random.Random(seed), workload.kind == "rerank"

    def drawn(number: int, length: int) -> str:
        if workload.instruction and workload.model.startswith("random:"):
            return instructed(length, workload.instruction, draw)
        same = random.Random(f"{seed} {number}") if workload.alike else draw
        return text(workload.model, length, same, late, workload.period)

    return [[drawn(number, length) for length in lengths] for number, lengths in enumerate(workload.requests)]


def messages(workload: Workload, seed: int) -> list[bytes]:
    """Serialises every request by our own contract."""
    requests: list[Any] = []
    late, outputs = vectors_pb2.SCORING_METHOD_LATE_INTERACTION, [vectors_pb2.OUTPUT_KIND_MULTI_VECTOR]
    for texts in texts_of(workload, seed):
        if workload.kind == "rerank":
            requests.append(ranking_pb2.RerankRequest(query=texts[0], documents=texts[1:], method=late))
        else:
            requests.append(
                embedding_pb2.EmbedRequest(texts=texts, outputs=outputs if workload.kind == "tokens" else [])
            )
    return [request.SerializeToString() for request in requests]


def tokens_counted(method: str, reply: bytes) -> int | None:
    """Reads how many tokens the server counted in a request; None of the null server, which counts nothing."""
    if method == TEI_EMBED:
        return tei_pb2.EmbedResponse.FromString(reply).metadata.compute_tokens
    kind: Any = ranking_pb2.RerankResponse if method == RERANK else embedding_pb2.EmbedResponse
    parsed = kind.FromString(reply)
    return int(parsed.usage.prompt_tokens) if parsed.model else None


class GrpcTarget:
    """Services over gRPC: a channel to each server, used in rotation."""

    def __init__(
        self, channels: Sequence[grpc.aio.Channel], method: str, requests: Sequence[bytes], tokens: int, deadline: float
    ) -> None:
        """`tokens`: those of the first request."""
        calls: list[Callable[..., Any]] = [channel.unary_unary(method) for channel in channels]  # bytes as they are
        self._calls, self._method, self._requests = cycle(calls), method, requests
        self._tokens, self._deadline = tokens, deadline

    async def check(self) -> None:
        """Makes a first call, whose reply must count exactly the tokens that were sent. Raises LoadFailed."""
        try:
            reply = await next(self._calls)(self._requests[0], timeout=max(FIRST, self._deadline))
        except grpc.aio.AioRpcError as error:
            raise LoadFailed(f"the first call ended with {error.code().name}: {error.details()}") from None
        counted = tokens_counted(self._method, reply)
        if counted not in (None, self._tokens):
            raise LoadFailed(f"the first request is made of {self._tokens} tokens, the server counted {counted}")

    async def call(self, request: int) -> str:
        """See `Target`."""
        try:
            await next(self._calls)(self._requests[request], timeout=self._deadline or None)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return OK


class HttpTarget:
    """Servers over HTTP, used in rotation: an aiohttp session with as many connections as calls."""

    def __init__(
        self,
        session: Any,
        urls: str,
        bodies: Sequence[bytes],
        lost: type[Exception] = OSError,
        first: bytes | None = None,
    ) -> None:
        """`urls`: with commas between. `lost`: the exception that a broken connection raises. `first`: the body of the
        call that checks the server, by default the first of `bodies`, which a server may then know."""
        self._session, self._urls, self._bodies, self._lost = session, cycle(urls.split(",")), bodies, lost
        self._first = bodies[0] if first is None else first

    @classmethod
    @asynccontextmanager
    async def opened(
        cls,
        url: str,
        bodies: Sequence[bytes],
        *,
        deadline: float,
        first: bytes | None = None,
        reconnecting: bool = False,
    ) -> AsyncIterator[Self]:
        """Opens a session; calls end after `deadline` seconds. `first`: see the constructor. `reconnecting`: every call
        has its own connection."""
        import aiohttp  # may not be installed

        timeout = aiohttp.ClientTimeout(total=deadline)
        connector = aiohttp.TCPConnector(limit=0, force_close=reconnecting)
        every = {"Content-Type": "application/json"}
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=every) as session:
            yield cls(session, url, bodies, aiohttp.ClientError, first)

    async def check(self) -> None:
        """See `Target`."""
        if (status := await self._post(self._first)) != OK:
            raise LoadFailed(f"the first call ended with {status}")

    async def call(self, request: int) -> str:
        """See `Target`."""
        return await self._post(self._bodies[request])

    async def _post(self, body: bytes) -> str:
        try:
            async with self._session.post(next(self._urls), data=body) as response:
                await response.read()
        except TimeoutError:
            return EXPIRED
        except self._lost as error:
            return type(error).__name__
        return HTTP_STATUSES.get(response.status, f"HTTP {response.status}")


@asynccontextmanager
async def reached(address: str, workload: Workload, *, seed: int, deadline: float) -> AsyncIterator[Target]:
    """Opens the target of http:..., tei:HOST:PORT or HOST:PORT (several with commas, the scheme of tei once).

    Calls end after `deadline` seconds. Raises LoadFailed for a workload of more than single texts over tei.v1.
    """
    if address.startswith("http"):
        path = "rerank" if workload.kind == "rerank" else "embeddings"
        url = ",".join(f"{server.rstrip('/')}/{path}" for server in address.split(","))
        bodies = [infinity.body(texts, rerank=workload.kind == "rerank") for texts in texts_of(workload, seed)]
        async with HttpTarget.opened(url, bodies, deadline=deadline) as target:
            yield target
        return
    method, requests = RERANK if workload.kind == "rerank" else EMBED, messages(workload, seed)
    if address.startswith(TEI):
        if workload.kind != "dense" or any(len(request) > 1 for request in workload.requests):
            raise LoadFailed(f"{workload.name}: an Embed of tei.v1 has one text")
        method = TEI_EMBED
        requests = [tei_pb2.EmbedRequest(inputs=text).SerializeToString() for (text,) in texts_of(workload, seed)]
    servers = address.removeprefix(TEI).split(",")
    channels = [grpc.aio.insecure_channel(server, options=channel_options()) for server in servers]
    try:
        yield GrpcTarget(channels, method, requests, sum(workload.requests[0]), deadline)
    finally:
        for channel in channels:
            await channel.close()

"""Targets of a load: gRPC with deadlines, keys and priorities, or a peer over HTTP. Messages are made beforehand."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from typing import Any, Protocol, Self

import grpc

from benchmarks.load.loops import REFUSED, Sender, Target
from benchmarks.load.outcome import EXPIRED, OK, LoadFailed
from benchmarks.peers import infinity
from benchmarks.workloads import SPECIAL, Workload, instructed, text
from selvage.v1 import embedding_pb2, ranking_pb2, vectors_pb2
from shared.server.options import channel_options
from tei.v1 import tei_pb2

EMBED, RERANK = "/selvage.v1.EmbeddingService/Embed", "/selvage.v1.RankingService/Rerank"
TEI, TEI_EMBED = "tei:", "/tei.v1.Embed/Embed"
"""The beginning of addresses that are called by tei.v1, and its method."""
HTTP_STATUSES = {200: OK, 429: REFUSED, 503: REFUSED, 504: EXPIRED}


class Checked(Target, Protocol):
    """A target that can be checked before calls count."""

    async def check(self) -> None:
        """Makes a first call. Raises LoadFailed."""


def texts_of(workload: Workload, seed: int) -> list[list[str]]:
    """Draws the texts of each request, with exactly the workload's tokens for MiniLM and `random:` shapes."""
    draw, late = random.Random(seed), workload.kind == "rerank"
    if workload.instruction and workload.model.startswith("random:"):
        return [[instructed(length, workload.instruction, draw) for length in lengths] for lengths in workload.requests]
    if workload.alike:
        return [
            [
                text(workload.model, length, random.Random(f"{seed} {number}"), late, workload.period)
                for length in lengths
            ]
            for number, lengths in enumerate(workload.requests)
        ]
    return [
        [text(workload.model, length, draw, late, workload.period) for length in lengths]
        for lengths in workload.requests
    ]


def messages(workload: Workload, seed: int) -> list[bytes]:
    """Serialises every request by our own contract."""
    requests: list[Any] = []
    late, outputs = vectors_pb2.SCORING_METHOD_LATE_INTERACTION, [vectors_pb2.OUTPUT_KIND_MULTI_VECTOR]
    for texts in texts_of(workload, seed):
        if workload.kind == "rerank":
            requests.append(ranking_pb2.RerankRequest(query=texts[0], documents=texts[1:], method=late))
        elif workload.kind == "query":
            query = vectors_pb2.INPUT_TYPE_QUERY
            requests.append(embedding_pb2.EmbedRequest(texts=texts, input_type=query, sparse_top_k=QUERY_WEIGHTS))
        else:
            requests.append(
                embedding_pb2.EmbedRequest(texts=texts, outputs=outputs if workload.kind == "tokens" else [])
            )
    return [request.SerializeToString() for request in requests]


QUERY_WEIGHTS = 64
"""Weights of a sparse vector that a query asks for."""
FIRST = 60.0
"""Least timeout of the first call in seconds; the deadline of later calls may be shorter."""


class GrpcTarget:
    """Services over gRPC: a channel to each server, used in rotation."""

    def __init__(self, channels: Sequence[grpc.aio.Channel], workload: Workload, seed: int, deadline: float) -> None:
        method = RERANK if workload.kind == "rerank" else EMBED
        self._open(channels, method, messages(workload, seed))
        self._workload, self._deadline = workload, deadline

    def _open(self, channels: Sequence[grpc.aio.Channel], method: str, requests: Sequence[bytes]) -> None:
        self._calls: list[Any] = [channel.unary_unary(method) for channel in channels]  # no serialisers: bytes
        self._messages, self._sent = requests, 0

    async def check(self) -> None:
        """Makes a first call, whose reply must count exactly the tokens that were sent. Raises LoadFailed."""
        kind: Any = ranking_pb2.RerankResponse if self._workload.kind == "rerank" else embedding_pb2.EmbedResponse
        try:
            raw = await self._calls[0](self._messages[0], timeout=max(FIRST, self._deadline))
        except grpc.aio.AioRpcError as error:
            raise LoadFailed(f"the first call ended with {error.code().name}: {error.details()}") from None
        sent = sum(self._workload.requests[0])
        reply = kind.FromString(raw)
        counted = reply.usage.prompt_tokens if reply.model else None  # the null server counts nothing
        bare = sent - SPECIAL * (self._workload.kind == "query")  # a table reads no special tokens
        if counted not in (None, sent, bare):
            raise LoadFailed(f"the first request is made of {sent} tokens, the server counted {counted}")

    async def call(self, request: int, sender: Sender) -> str:
        self._sent += 1
        call = self._calls[self._sent % len(self._calls)]
        try:
            await call(self._messages[request], timeout=self._deadline or None, metadata=sender or None)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return OK


class TeiTarget(GrpcTarget):
    """Services over tei.v1, whose Embed has one text."""

    def __init__(self, channels: Sequence[grpc.aio.Channel], workload: Workload, seed: int, deadline: float) -> None:
        """Raises LoadFailed for a workload of anything else than single texts."""
        if workload.kind != "dense" or any(len(request) > 1 for request in workload.requests):
            raise LoadFailed(f"{workload.name}: an Embed of tei.v1 has one text")
        requests = [tei_pb2.EmbedRequest(inputs=text).SerializeToString() for (text,) in texts_of(workload, seed)]
        self._open(channels, TEI_EMBED, requests)
        self._workload, self._deadline = workload, deadline

    async def check(self) -> None:
        """See `GrpcTarget.check`."""
        try:
            raw = await self._calls[0](self._messages[0], timeout=max(FIRST, self._deadline))
        except grpc.aio.AioRpcError as error:
            raise LoadFailed(f"the first call ended with {error.code().name}: {error.details()}") from None
        sent, counted = sum(self._workload.requests[0]), tei_pb2.EmbedResponse.FromString(raw).metadata.compute_tokens
        if counted != sent:
            raise LoadFailed(f"the first request is made of {sent} tokens, the server counted {counted}")


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
        """See `Checked`."""
        if (status := await self._post(self._first)) != OK:
            raise LoadFailed(f"the first call ended with {status}")

    async def call(self, request: int, sender: Sender) -> str:
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
async def reached(address: str, workload: Workload, *, seed: int, deadline: float) -> AsyncIterator[Checked]:
    """Opens the target of http:..., tei:HOST:PORT or HOST:PORT (several with commas, the scheme of tei once).

    Calls end after `deadline` seconds.
    """
    if address.startswith("http"):
        path = "rerank" if workload.kind == "rerank" else "embeddings"
        url = ",".join(f"{server.rstrip('/')}/{path}" for server in address.split(","))
        bodies = [infinity.body(texts, rerank=workload.kind == "rerank") for texts in texts_of(workload, seed)]
        async with HttpTarget.opened(url, bodies, deadline=deadline) as target:
            yield target
        return
    servers = address.removeprefix(TEI).split(",")
    channels = [grpc.aio.insecure_channel(server, options=channel_options()) for server in servers]
    try:
        yield (TeiTarget if address.startswith(TEI) else GrpcTarget)(channels, workload, seed, deadline)
    finally:
        for channel in channels:
            await channel.close()

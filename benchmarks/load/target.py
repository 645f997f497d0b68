"""Targets of a load: gRPC with deadlines, or HTTP. Messages are made beforehand."""

import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from typing import Any

import grpc

from benchmarks.load.loops import EXPIRED, OK, REFUSED, LoadFailed, Target
from benchmarks.workloads import Kind, Workload, instructed, text
from selvage.v1 import embedding_pb2, ranking_pb2, vectors_pb2
from shared.server.options import channel_options
from tei.v1 import tei_pb2

EMBED, RERANK = "/selvage.v1.EmbeddingService/Embed", "/selvage.v1.RankingService/Rerank"
TEI, TEI_EMBED = "tei:", "/tei.v1.Embed/Embed"
"""The beginning of addresses that are called by tei.v1, and its method."""
HTTP_STATUSES = {200: OK, 429: REFUSED, 503: REFUSED, 504: EXPIRED}
FIRST, CHECKED = 60.0, 0
"""Least timeout of the first call in seconds, as later calls may have a shorter one; the seed of its texts, which
should be no others' seed, as a server may keep what it computed of a text."""


def texts_of(workload: Workload, seed: int) -> list[list[str]]:
    """Draws the texts of each request, with exactly the workload's tokens for MiniLM and `random:` shapes."""
    draw, late = random.Random(seed), workload.kind == "rerank"

    def drawn(number: int, length: int) -> str:
        if workload.instruction and workload.model.startswith("random:"):
            return instructed(length, workload.instruction, draw)
        same = random.Random(f"{seed} {number}") if workload.alike else draw
        return text(workload.model, length, same, late, workload.period)

    return [[drawn(number, length) for length in lengths] for number, lengths in enumerate(workload.requests)]


def body(kind: Kind, model: str, texts: Sequence[str]) -> bytes:
    """Builds a request over HTTP: embeddings in OpenAI's shape, token rows in vLLM's, or a rerank in Jina's, whose
    query is the first text."""
    fields: dict[str, Any] = {"input": list(texts), "encoding_format": "base64"}
    if kind == "rerank":
        fields = {"query": texts[0], "documents": list(texts[1:])}
    if kind == "tokens":
        fields["task"] = "token_embed"
    return json.dumps({"model": model} | fields).encode()


def message(kind: Kind, texts: Sequence[str]) -> bytes:
    """Serialises a request by our own contract."""
    if kind == "rerank":
        late = vectors_pb2.SCORING_METHOD_LATE_INTERACTION
        return ranking_pb2.RerankRequest(query=texts[0], documents=texts[1:], method=late).SerializeToString()
    outputs = [vectors_pb2.OUTPUT_KIND_MULTI_VECTOR] if kind == "tokens" else []
    return embedding_pb2.EmbedRequest(texts=texts, outputs=outputs).SerializeToString()


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
        """`requests`: the last one is that of the check, which has so many `tokens`."""
        calls: list[Callable[..., Any]] = [channel.unary_unary(method) for channel in channels]  # bytes as they are
        self._calls, self._method, self._requests = cycle(calls), method, requests
        self._tokens, self._deadline = tokens, deadline

    async def check(self) -> None:
        """Makes a first call, whose reply must count exactly the tokens that were sent. Raises LoadFailed."""
        try:
            reply = await next(self._calls)(self._requests[-1], timeout=max(FIRST, self._deadline))
        except grpc.aio.AioRpcError as error:
            raise LoadFailed(f"the first call ended with {error.code().name}: {error.details()}") from None
        counted = tokens_counted(self._method, reply)
        if counted not in (None, self._tokens):
            raise LoadFailed(f"the first request is made of {self._tokens} tokens, the server counted {counted}")

    async def call(self, request: int) -> str:
        """See `Target`."""
        try:
            await next(self._calls)(self._requests[request], timeout=self._deadline)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return OK


class HttpTarget:
    """Servers over HTTP, used in rotation: a session of aiohttp. The last of the `requests` is that of the check."""

    def __init__(self, session: Any, urls: Sequence[str], requests: Sequence[bytes], lost: type[Exception]) -> None:
        """`lost`: the exception that a broken connection raises."""
        self._session, self._urls, self._requests, self._lost = session, cycle(urls), requests, lost

    async def check(self) -> None:
        """See `Target`."""
        if (status := await self.call(-1)) != OK:
            raise LoadFailed(f"the first call ended with {status}")

    async def call(self, request: int) -> str:
        """See `Target`."""
        try:
            async with self._session.post(next(self._urls), data=self._requests[request]) as response:
                await response.read()
        except TimeoutError:
            return EXPIRED
        except self._lost as error:
            return type(error).__name__
        return HTTP_STATUSES.get(response.status, f"HTTP {response.status}")


@asynccontextmanager
async def reached(
    address: str, workload: Workload, *, seed: int, deadline: float, model: str, reconnecting: bool
) -> AsyncIterator[Target]:
    """Opens the target of http://..., tei:HOST:PORT or HOST:PORT (several with commas, the scheme of tei once).

    Calls end after `deadline` seconds. `model` and `reconnecting`: its name over HTTP, and whether each call has a
    connection of its own. Raises LoadFailed for a workload of more than single texts over tei.v1.
    """
    kind, every = workload.kind, [*texts_of(workload, seed), texts_of(workload, CHECKED)[0]]
    servers = address.removeprefix(TEI).split(",")
    if address.startswith("http"):
        import aiohttp  # may not be installed

        bodies, timeout = [body(kind, model, texts) for texts in every], aiohttp.ClientTimeout(total=deadline)
        options: Any = {"timeout": timeout, "headers": {"Content-Type": "application/json"}}
        connector = aiohttp.TCPConnector(limit=0, force_close=reconnecting)
        async with aiohttp.ClientSession(connector=connector, **options) as session:
            yield HttpTarget(session, servers, bodies, aiohttp.ClientError)
        return
    if address.startswith(TEI):
        if kind != "dense" or any(len(texts) > 1 for texts in every):
            raise LoadFailed(f"{workload.name}: an Embed of tei.v1 has one text")
        method, requests = TEI_EMBED, [tei_pb2.EmbedRequest(inputs=texts[0]).SerializeToString() for texts in every]
    else:
        method, requests = RERANK if kind == "rerank" else EMBED, [message(kind, texts) for texts in every]
    channels = [grpc.aio.insecure_channel(server, options=channel_options()) for server in servers]
    try:
        yield GrpcTarget(channels, method, requests, sum(workload.requests[0]), deadline)
    finally:
        for channel in channels:
            await channel.close()

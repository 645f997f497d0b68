"""Targets of a load: gRPC with deadlines, HTTP, or a worker's own link. Messages are made beforehand."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count, cycle
from typing import Any

import grpc

from benchmarks.load.loops import EXPIRED, OK, REFUSED, LoadFailed, Send
from benchmarks.workloads import Kind, Workload, instructed, text, token_ids
from selvage.v1 import embedding_pb2, ranking_pb2, vectors_pb2
from selvage.worker.v1 import worker_pb2
from selvage.worker.v1.worker_pb2_grpc import WorkerServiceStub
from shared.jobs import Encode, Job, RaggedTokens
from shared.link_codec import jobs_to_pb
from shared.server.options import LINK_VERSION, channel_options
from shared.vectors import OutputKind
from tei.v1 import tei_pb2

EMBED, RERANK = "/selvage.v1.EmbeddingService/Embed", "/selvage.v1.RankingService/Rerank"
TEI, TEI_EMBED = "tei:", "/tei.v1.Embed/Embed"
"""The beginning of addresses that are called by tei.v1, and its method."""
HTTP_STATUSES = {200: OK, 429: REFUSED, 503: REFUSED, 504: EXPIRED}
LINK, MERGED = "link:", "link, merged:"
"""Beginnings of a worker's address, which is called as a frontend does: with jobs of many callers, or of one."""
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


@asynccontextmanager
async def reached(
    address: str, workload: Workload, *, seed: int, deadline: float, model: str, reconnecting: bool
) -> AsyncIterator[Send]:
    """Opens the target of http://..., tei:HOST:PORT or HOST:PORT (several with commas, the scheme of tei once), which
    are called in rotation, and yields what sends a request, once a first call was answered. Or of link:HOST:PORT.

    Calls end after `deadline` seconds. `model` and `reconnecting`: its name over HTTP, and whether each call has a
    connection of its own. Raises LoadFailed where the first call fails, where a server counts other tokens in it than
    it is made of, and for a workload of more than single texts over tei.v1.
    """
    if address.startswith((LINK, MERGED)):
        merged = address.startswith(MERGED)
        async with attached(address.removeprefix(MERGED if merged else LINK), workload, deadline, merged) as send:
            yield send
        return
    kind, every = workload.kind, [*texts_of(workload, seed), texts_of(workload, CHECKED)[0]]
    if address.startswith("http"):
        async with _http(
            address.split(","), [body(kind, model, texts) for texts in every], deadline, reconnecting
        ) as send:
            if (status := await send(-1)) != OK:
                raise LoadFailed(f"the first call ended with {status}")
            yield send
        return
    method, requests = RERANK if kind == "rerank" else EMBED, [message(kind, texts) for texts in every]
    if address.startswith(TEI):
        if kind != "dense" or any(len(texts) > 1 for texts in every):
            raise LoadFailed(f"{workload.name}: an Embed of tei.v1 has one text")
        method, requests = TEI_EMBED, [tei_pb2.EmbedRequest(inputs=texts[0]).SerializeToString() for texts in every]
    servers = address.removeprefix(TEI).split(",")
    async with AsyncExitStack() as cleanup:
        opened = [grpc.aio.insecure_channel(server, options=channel_options()) for server in servers]
        channels = [await cleanup.enter_async_context(channel) for channel in opened]
        calls: Iterator[Any] = cycle([channel.unary_unary(method) for channel in channels])  # bytes as they are

        async def send(request: int) -> str:
            try:
                await next(calls)(requests[request], timeout=deadline)
            except grpc.aio.AioRpcError as error:
                return error.code().name
            return OK

        try:
            reply = await next(calls)(requests[-1], timeout=max(FIRST, deadline))
        except grpc.aio.AioRpcError as error:
            raise LoadFailed(f"the first call ended with {error.code().name}: {error.details()}") from None
        tokens, counted = sum(workload.requests[0]), tokens_counted(method, reply)
        if counted not in (None, tokens):
            raise LoadFailed(f"the first request is made of {tokens} tokens, the server counted {counted}")
        yield send


@asynccontextmanager
async def attached(worker: str, workload: Workload, deadline: float, merged: bool) -> AsyncIterator[Send]:
    """Attaches to a worker; yields what sends a request's sequences in one message, and waits for all their vectors.

    Each sequence is a job of a caller of its own, or all are `merged` in one, as a frontend sends those of one caller.
    """
    encode = Encode(outputs=frozenset({OutputKind.DENSE}), normalize=True, normalize_tokens=True)
    lists = [[ids.tolist() for ids in token_ids(lengths)] for lengths in workload.requests]
    tokens = [[RaggedTokens.of(part) for part in ([ids] if merged else [[text] for text in ids])] for ids in lists]
    numbers, waiting, writing = count(1), dict[int, asyncio.Future[str]](), asyncio.Lock()
    async with grpc.aio.insecure_channel(worker, options=channel_options()) as channel:
        described: Any = await WorkerServiceStub(channel).Describe(worker_pb2.DescribeRequest())
        fingerprint = described.card.fingerprint
        link: Any = WorkerServiceStub(channel).Attach()
        hello = worker_pb2.Hello(version=LINK_VERSION, name="a load", fingerprint=fingerprint)
        await link.write(worker_pb2.AttachRequest(hello=hello))

        async def read() -> None:
            try:
                async for message in link:
                    for part in message.answers:
                        if part.HasField("end"):
                            waiting.pop(part.job_id).set_result(part.end.error.reason or OK)
            finally:
                for answer in waiting.values():
                    answer.set_result("the worker ended the link")

        async def send(request: int) -> str:
            jobs = [
                Job(id=next(numbers), work=encode, tokens=text_tokens, remaining=deadline, key=f"caller {place}")
                for place, text_tokens in enumerate(tokens[request])
            ]
            answers = [waiting.setdefault(job.id, asyncio.get_running_loop().create_future()) for job in jobs]
            async with writing:
                await link.write(jobs_to_pb(jobs, fingerprint))
            statuses = {await answer for answer in answers}
            return OK if statuses == {OK} else str(statuses)

        reading = asyncio.create_task(read())
        try:
            yield send
        finally:
            reading.cancel()


@asynccontextmanager
async def _http(
    urls: Sequence[str], bodies: Sequence[bytes], deadline: float, reconnecting: bool
) -> AsyncIterator[Send]:
    import aiohttp  # may not be installed

    connector, timeout = aiohttp.TCPConnector(limit=0, force_close=reconnecting), aiohttp.ClientTimeout(total=deadline)
    headers, places = {"Content-Type": "application/json"}, cycle(urls)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:

        async def send(request: int) -> str:
            try:
                async with session.post(next(places), data=bodies[request]) as response:
                    await response.read()
            except TimeoutError:
                return EXPIRED
            except aiohttp.ClientError as error:
                return type(error).__name__
            return HTTP_STATUSES.get(response.status, f"HTTP {response.status}")

        yield send

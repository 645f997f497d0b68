"""Asks for rows and drops them: as a frontend up to the JobResult (`link ADDRESS`), or as a caller (`embed ADDRESS`).

A line of JSON asks for some seconds of a closed loop, a line tells bytes and jobs; `wire.py` runs it on any checkout.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import count
from random import Random
from typing import Any

import grpc

from benchmarks.workloads import text
from frontend_service.worker.link import Link
from frontend_service.worker.way import Way
from selvage.v1 import embedding_pb2
from shared.jobs import Encode, Job
from shared.memory import give_back_large_blocks
from shared.ragged import RaggedTokens
from shared.rpc import channel_options
from shared.vectors import DataType, OutputKind

Ask = Callable[[], Awaitable[int]]
"""One request; bytes of its rows."""


@asynccontextmanager
async def link(address: str) -> AsyncIterator[Callable[..., Ask]]:
    """A frontend's own link to a worker, without a door."""
    give_back_large_blocks()  # as frontends do
    ready, ids = asyncio.Event(), count(1)
    over = Link(address, address, Way(), ThreadPoolExecutor(2), ready.set)
    following = asyncio.create_task(over.follow())
    while over.serving is None:
        ready.clear()
        await ready.wait()

    def asking(texts: int, length: int, output: int, data_type: int) -> Ask:
        tokens, kinds = RaggedTokens.of([[500] * length] * texts), frozenset({OutputKind(output)})
        work = Encode(outputs=kinds, normalize=True, normalize_tokens=True, data_type=DataType(data_type))

        async def ask() -> int:
            result = await over.run(Job(id=next(ids), work=work, tokens=tokens))
            return sum(len(each.data) for each in (result.dense, result.tokens) if each is not None)

        return ask

    yield asking
    following.cancel()


@asynccontextmanager
async def embed(address: str) -> AsyncIterator[Callable[..., Ask]]:
    """A caller of selvage.v1; texts differ, since equal ones are computed once."""
    async with grpc.aio.insecure_channel(address, options=channel_options()) as channel:
        call: Any = channel.unary_unary("/selvage.v1.EmbeddingService/Embed")  # bytes both ways

        def asking(texts: int, length: int, output: int, data_type: int) -> Ask:
            words = [text("random:", length, Random(number)) for number in range(texts)]
            asked: dict[str, Any] = {"texts": words, "outputs": [output], "data_type": data_type}
            message = embedding_pb2.EmbedRequest(**asked).SerializeToString()

            async def ask() -> int:
                return len(await call(message))

            return ask

        yield asking


async def main(role: str, address: str) -> None:
    async with {"link": link, "embed": embed}[role](address) as asking:
        loop = asyncio.get_running_loop()
        print("{}", flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            asked = json.loads(line)
            stop, sizes = loop.time() + asked.pop("seconds"), list[int]()

            async def client(ask: Ask, stop: float, sizes: list[int]) -> None:
                while loop.time() < stop:
                    sizes.append(await ask())

            clients, ask = asked.pop("clients"), asking(**asked)
            await asyncio.gather(*(client(ask, stop, sizes) for _ in range(clients)))
            print(json.dumps({"bytes": sum(sizes), "jobs": len(sizes)}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

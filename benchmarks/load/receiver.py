"""Asks for rows and drops them: as a frontend up to the JobResult (`link ADDRESS`), or as a caller (`embed ADDRESS`).

A line of JSON asks for some seconds of a closed loop, a line tells bytes; `wire.py` runs it on any checkout.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
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

IDS = count(1)


async def over_link(link: Link, texts: int, length: int, output: int, data_type: int) -> int:
    """Bytes of one job's rows."""
    kinds = frozenset({OutputKind(output)})
    work = Encode(outputs=kinds, normalize=True, normalize_tokens=True, data_type=DataType(data_type))
    result = await link.run(Job(id=next(IDS), work=work, tokens=RaggedTokens.of([[500] * length] * texts)))
    return sum(len(each.data) for each in (result.dense, result.tokens) if each is not None)


async def by_embed(call: Any, texts: int, length: int, output: int, data_type: int) -> int:
    """Bytes of one reply; texts differ, since equal ones are computed once."""
    words = [text("random:", length, Random(number)) for number in range(texts)]
    asked: dict[str, Any] = {"texts": words, "outputs": [output], "data_type": data_type}
    return len(await call(embedding_pb2.EmbedRequest(**asked).SerializeToString()))


async def client(ask: Callable[[], Awaitable[int]], stop: float) -> int:
    """Bytes of all that was asked for before `stop`, one after the other."""
    found = 0
    while asyncio.get_running_loop().time() < stop:
        size = await ask()  # apart: what `found += await` adds to is read before it waits
        found += size
    return found


async def main(role: str, address: str) -> None:
    give_back_large_blocks()  # as frontends do
    channel = grpc.aio.insecure_channel(address, options=channel_options())
    link = Link(address, address, Way(), ThreadPoolExecutor(2), lambda: None)
    following = asyncio.create_task(link.follow()) if role == "link" else None
    while following and link.serving is None:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    call: Any = channel.unary_unary("/selvage.v1.EmbeddingService/Embed")  # bytes both ways
    loop = asyncio.get_running_loop()
    print("{}", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        stop, clients = loop.time() + asked.pop("seconds"), range(asked.pop("clients"))

        async def ask(asked: dict[str, int] = asked) -> int:
            return await (over_link(link, **asked) if following else by_embed(call, **asked))

        print(json.dumps({"bytes": sum(await asyncio.gather(*(client(ask, stop) for _ in clients)))}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

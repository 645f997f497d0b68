"""A grpc.aio server that answers Embed at once: what gRPC costs a server where nothing is computed.

`python -m benchmarks.load.null_server` prints its address in a line and serves until its standard input ends. With
`--refuse` it refuses every call unread, but the first of each connection: the least that a refusal takes. With
`--relay HOST:PORT` it asks another such server, and gives its reply: two hops that do nothing.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from benchmarks.load.target import EMBED
from benchmarks.machine import ROOT
from selvage.v1 import embedding_pb2, vectors_pb2
from shared.server.options import channel_options, server_options


@contextmanager
def null_server(*, refuse: bool = False, relay: str = "") -> Iterator[tuple[str, int]]:
    """Runs the server; yields its address and process id. `relay`: the address of the server that it asks."""
    flags = [*(["--refuse"] if refuse else []), *(["--relay", relay] if relay else [])]
    command = [sys.executable, "-m", "benchmarks.load.null_server", *flags]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid


async def serve(*, refuse: bool, relay: str = "") -> None:
    """Serves until standard input ends."""
    dense = vectors_pb2.DenseVectors(data=bytes(4 * 384), count=1, dimensions=384)
    reply = embedding_pb2.EmbedResponse(dense=dense).SerializeToString()  # as large as our service's; names no model

    next_hop: Any = grpc.aio.insecure_channel(relay, options=channel_options()).unary_unary(EMBED) if relay else None

    async def answer(request: bytes, context: object) -> bytes:
        if next_hop is None:
            return reply
        answered: bytes = await next_hop(request, timeout=60)
        return answered

    met: set[str] = set()

    async def turn_away(_: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        if context.peer() in met:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too much")
        met.add(context.peer())  # a load generator makes a first call, which must be answered
        return reply

    service, _, name = EMBED.strip("/").partition("/")
    refusing: Any = grpc.stream_unary_rpc_method_handler(turn_away)  # as a stream: it is not read
    handlers: Any = {name: refusing if refuse else grpc.unary_unary_rpc_method_handler(answer)}
    server = grpc.aio.server(options=server_options(connection_age=False))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(serve(refuse="--refuse" in sys.argv, relay=sys.argv[-1] if "--relay" in sys.argv else ""))

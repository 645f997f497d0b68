"""A grpc.aio server that answers Embed and Rerank at once: what gRPC costs a server where nothing is computed.

`python -m benchmarks.load.null_server RESULTS` prints its address in a line and serves until its standard input ends.
With `HOST:PORT` behind it, it asks another such server, and gives its reply: two hops that do nothing.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc

from benchmarks.load.target import EMBED, RERANK
from benchmarks.machine import ROOT
from selvage.v1 import embedding_pb2, ranking_pb2, vectors_pb2
from shared.server.options import channel_options, server_options


@contextmanager
def null_server(results: int = 1, relay: str = "") -> Iterator[tuple[str, int]]:
    """Runs the server; yields its address and process id.

    `results`: vectors or scores of a reply. `relay`: the address of the server that it asks.
    """
    command = [sys.executable, "-m", "benchmarks.load.null_server", str(results), *filter(None, [relay])]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid


async def serve(results: int, relay: str = "") -> None:
    """Serves until standard input ends. Replies are as large as our services' ones, and name no model."""
    dense = vectors_pb2.DenseVectors(data=bytes(4 * 384 * results), count=results, dimensions=384)
    ranked = [ranking_pb2.RerankResult(index=number, score=0.5) for number in range(results)]
    replies = {
        EMBED: embedding_pb2.EmbedResponse(dense=dense).SerializeToString(),
        RERANK: ranking_pb2.RerankResponse(results=ranked).SerializeToString(),
    }
    channel = grpc.aio.insecure_channel(relay, options=channel_options()) if relay else None
    server = grpc.aio.server(options=server_options(connection_age=False))
    for method, reply in replies.items():
        service, _, name = method.strip("/").partition("/")
        next_hop: Any = channel.unary_unary(method) if channel else None
        handlers: Any = {name: grpc.unary_unary_rpc_method_handler(partial(_answer, reply, next_hop))}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    await server.stop(None)


async def _answer(reply: bytes, next_hop: Any, request: bytes, context: object) -> bytes:
    relayed: bytes = reply if next_hop is None else await next_hop(request, timeout=60)
    return relayed


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), *sys.argv[2:]))

"""A grpc.aio server that answers Embed at once: what gRPC costs a server where nothing is computed.

`python -m benchmarks.load.null_server` prints its address in a line and serves until its standard input ends. With
`HOST:PORT` behind it, it asks another such server, and gives its reply: two hops that do nothing.
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
def null_server(relay: str = "") -> Iterator[tuple[str, int]]:
    """Runs the server; yields its address and process id. `relay`: the address of the server that it asks."""
    command = [sys.executable, "-m", "benchmarks.load.null_server", *filter(None, [relay])]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid


async def serve(relay: str = "") -> None:
    """Serves until standard input ends."""
    dense = vectors_pb2.DenseVectors(data=bytes(4 * 384), count=1, dimensions=384)
    reply = embedding_pb2.EmbedResponse(dense=dense).SerializeToString()  # as large as our service's; names no model
    next_hop: Any = grpc.aio.insecure_channel(relay, options=channel_options()).unary_unary(EMBED) if relay else None

    async def answer(request: bytes, context: object) -> bytes:
        relayed: bytes = reply if next_hop is None else await next_hop(request, timeout=60)
        return relayed

    service, _, name = EMBED.strip("/").partition("/")
    handlers: Any = {name: grpc.unary_unary_rpc_method_handler(answer)}
    server = grpc.aio.server(options=server_options(connection_age=False))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))

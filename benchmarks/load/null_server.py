"""A server that answers at once with bytes made beforehand: what the generator reaches against it is its ceiling.

`python -m benchmarks.load.null_server --method /selvage.v1.EmbeddingService/Embed --reply-bytes 1536` for gRPC,
`... --method /embeddings --http` for HTTP. Prints its address in one line, serves until its standard input ends.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from aiohttp import web

from benchmarks.load.target import Address, GrpcAddress, HttpAddress
from harness.environment import ROOT, python_path
from shared.rpc import server_options

BACKLOG = [("grpc.server.max_pending_requests", 100_000), ("grpc.server.max_pending_requests_hard_limit", 100_000)]
"""By default grpc cancels calls at random while more than 1,000 have come that nobody has taken yet."""


@asynccontextmanager
async def null_server(address: Address, reply_bytes: int) -> AsyncIterator[tuple[Address, int]]:
    """The same address, but of a null server in a process of its own, and its process id; ended at the end."""
    http = isinstance(address, HttpAddress)
    method = f"/{address.servers[0].partition('//')[2].partition('/')[2]}" if http else _method(address)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.load.null_server", "--method", method),
        *("--reply-bytes", str(reply_bytes), *(["--http"] if http else [])),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": python_path()},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        listening = (await process.stdout.readline()).decode().strip()
        if http:
            yield HttpAddress(servers=(f"http://{listening}{method}",)), process.pid
        else:
            yield GrpcAddress(servers=(listening,), method=method), process.pid
    finally:
        process.stdin.close()
        await process.wait()


def _method(address: Address) -> str:
    assert isinstance(address, GrpcAddress)
    return address.method


async def serve_grpc(method: str, reply: bytes) -> None:
    """Until standard input ends."""

    async def answer(request: bytes, context: object) -> bytes:
        return reply

    service, _, name = method.strip("/").partition("/")
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {name: grpc.unary_unary_rpc_method_handler(answer)}
    options = [*server_options(connection_age=False), *BACKLOG]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    await server.stop(None)


async def serve_http(path: str, reply: bytes) -> None:
    """The same over HTTP."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=reply, content_type="application/json")

    application = web.Application(client_max_size=1 << 30)
    application.router.add_post(path, answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print("{}:{}".format(*runner.addresses[0][:2]), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.null_server", description=__doc__)
    parser.add_argument("--method", required=True, help="the gRPC method, or the path with --http")
    parser.add_argument("--reply-bytes", type=int, default=1024, help="size of each reply (default: %(default)s)")
    parser.add_argument("--http", action="store_true", help="plain HTTP instead of gRPC")
    arguments = parser.parse_args()
    serve = serve_http if arguments.http else serve_grpc
    asyncio.run(serve(arguments.method, bytes(arguments.reply_bytes)))

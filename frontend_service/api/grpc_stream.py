"""How replies of a stream leave over grpc.aio."""

import asyncio
from typing import Any

import grpc

from frontend_service.api.streams.two_way_stream import Replies

Context = grpc.aio.ServicerContext[Any, Any]


async def begun(context: Context) -> Replies:
    """Of a call that is let in. Its metadata leave now: else grpcio sends no status while a reply is not read."""
    await context.send_initial_metadata(())

    async def write(reply: bytes) -> None:
        try:
            await context.write(reply)
        except grpc.aio.BaseError:  # the caller has gone, and the call is about to be cancelled
            raise asyncio.CancelledError from None

    return Replies(write, context.add_done_callback)  # type: ignore[arg-type]

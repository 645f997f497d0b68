"""Replies of a two-way stream over grpc.aio."""

import asyncio
from typing import Any

import grpc

from frontend_service.api.streams.two_way_stream import Replies

Context = grpc.aio.ServicerContext[Any, Any]


async def begin_replies(context: Context) -> Replies:
    """Begins the response of a call that was admitted, and returns the object that writes its replies.

    The metadata are sent at once: otherwise grpcio sends no status while a reply is not read.
    """
    await context.send_initial_metadata(())

    async def write(reply: bytes) -> None:
        try:
            await context.write(reply)
        except grpc.aio.BaseError:  # the caller has gone, and the call is about to be cancelled
            raise asyncio.CancelledError from None

    return Replies(write, context.add_done_callback)  # type: ignore[arg-type]

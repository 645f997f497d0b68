"""Around every gRPC call of ours: bytes to messages and back, and an error of ours as a status. Policy is `Calls`'."""

from __future__ import annotations  # grpcio's own classes take no type arguments at run time

from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from shared.calls import Caller, Calls
from shared.errors import InvalidInput, SelvageError
from shared.offload import offload
from shared.rpc.metadata import REQUEST_ID, request_id_of
from shared.rpc.status import abort

OURS = "/selvage."


class Interceptor(grpc.aio.ServerInterceptor):
    """Lets `Calls` hold for servicers, which raise SelvageError and never abort by themselves.

    Handlers below it take raw bytes, so that a message that is none becomes INVALID_ARGUMENT (grpcio alone
    says UNKNOWN and names a Python class), and large ones are parsed in a thread.
    """

    def __init__(self, calls: Calls, threads: Executor) -> None:
        """`threads`: where large messages are parsed and serialised."""
        self._calls = calls
        self._threads = threads

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler: Any = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or handler.request_streaming or not method.startswith(OURS):
            return handler  # type: ignore[no-any-return]

        async def unary(raw: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            caller = _caller(method, context)

            async def work() -> bytes:
                request = await self._parse(handler.request_deserializer, raw)
                return await self._serialise(await handler.unary_unary(request, context))

            try:
                return await self._calls.answer(caller, work)
            except SelvageError as error:
                await abort(context, error, caller.request_id)

        async def stream(raw: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
            caller = _caller(method, context)
            try:
                with self._calls.running(caller):
                    request = await self._parse(handler.request_deserializer, raw)
                    async for response in handler.unary_stream(request, context):
                        yield await self._serialise(response)
            except SelvageError as error:
                await abort(context, error, caller.request_id)

        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)

    async def _parse(self, parse: Callable[[bytes], Message], raw: bytes) -> Message:
        try:
            return await offload(self._threads, len(raw), parse, raw)
        except DecodeError:
            raise InvalidInput("the request is not a message of this method") from None

    async def _serialise(self, message: Message) -> bytes:
        return await offload(self._threads, message.ByteSize(), type(message).SerializeToString, message)


def _caller(method: str, context: grpc.aio.ServicerContext[Any, Any]) -> Caller:
    """Who calls; the reply carries its request id back."""
    request_id = request_id_of(context.invocation_metadata())
    context.set_trailing_metadata(((REQUEST_ID, request_id),))
    return Caller(method=method, request_id=request_id, remaining=context.time_remaining())

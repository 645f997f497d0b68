"""Interceptor of all gRPC calls: converts bytes to messages and back, and errors to statuses. `Calls` has the rules."""

from __future__ import annotations  # grpcio's own classes take no type arguments at run time

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError, Message

from shared.caller import REQUEST_ID, Caller, caller_of, chosen_id
from shared.errors import InputTooLarge, InvalidInput, SelvageError
from shared.server.calls import CANCELLED, Calls
from shared.server.status import abort
from shared.tasks import THREAD_BYTES, either, offload
from shared.value_codec import check_entries, check_names

FOREIGN = "/grpc."
"""Prefix of the methods of gRPC's own services, health and reflection. All other methods are those of our APIs."""
LARGE_REPLY = 64 * 1024
"""Size in bytes above which a reply counts as unread; smaller ones fit into a connection's window."""
CALLER: ContextVar[Caller] = ContextVar("caller")
"""The caller of the current call, set by the interceptor for servicers."""

Context = grpc.aio.ServicerContext[Any, Any]
ServeCall = Callable[[AsyncIterator[bytes], Context, Caller], Awaitable[Any]]
TellStatus = Callable[[str, SelvageError], SelvageError]
"""Rewords an error for the API that has the method."""
CODES = {code.value[0]: code.name for code in grpc.StatusCode}


class Rpcs(Protocol):
    """Receives the start and the end of each rpc.

    `kind`: unary, client_stream, server_stream or bidi_stream; `code`: as gRPC's status codes are named.
    """

    def started(self, method: str, kind: str) -> None: ...
    def ended(self, method: str, kind: str, code: str, seconds: float) -> None: ...


def unchanged(_: str, error: SelvageError) -> SelvageError:
    """Returns the error as it was raised."""
    return error


class Interceptor(grpc.aio.ServerInterceptor):
    """Applies `Calls` to servicers, which raise SelvageError and never abort by themselves.

    The handlers given to grpcio take raw bytes, so that malformed messages become INVALID_ARGUMENT (grpcio alone says
    UNKNOWN and names a Python class), and large ones are parsed in a thread. All methods are registered as streams,
    because grpcio does not read their messages before a handler does: a refused call is never read.
    """

    def __init__(
        self,
        calls: Calls,
        threads: Executor,
        rpcs: Rpcs | None = None,
        tell: TellStatus = unchanged,
        check_large: Callable[[bytes], None] = check_entries,
    ) -> None:
        """`threads`: where large messages are parsed and serialised. `rpcs`: notified of each rpc.

        `tell`: rewords errors. `check_large`: may refuse a large message before it is parsed.
        """
        self._calls, self._threads, self._rpcs, self._tell = calls, threads, rpcs, tell
        self._check_large = check_large
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}  # of our methods: each is wrapped once

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = handler_call_details.method
        if method in self._handlers:
            return self._handlers[method]
        handler: Any = await continuation(handler_call_details)
        return None if handler is None else self._handlers.setdefault(method, self._wrapped(handler, method))

    def _wrapped(self, handler: Any, method: str) -> grpc.RpcMethodHandler[Any, Any]:
        """The handler that grpcio calls instead of a servicer's own."""
        if method.startswith(FOREIGN):
            lasts = handler.request_streaming or handler.response_streaming
            serve = self._watched(handler) if lasts else self._checked(handler)
            return grpc.stream_stream_rpc_method_handler(self._answered(serve, method, ""))
        if handler.request_streaming and handler.response_streaming:
            both_ways = self._answered(self._both_ways(handler), method, "bidi_stream")
            return grpc.stream_stream_rpc_method_handler(both_ways)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(self._answered(self._up(handler), method, "client_stream"))
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._answered(self._down(handler), method, "server_stream"))
        return grpc.stream_unary_rpc_method_handler(self._answered(self._unary(handler), method, "unary"))

    def _answered(self, serve: ServeCall, method: str, kind: str) -> Any:
        """Wraps `serve`: passes it the caller, ends failed calls with a status, and reports outcomes to `rpcs`.

        Health and reflection need no key, and are no rpcs of ours.
        """
        foreign = method.startswith(FOREIGN)

        async def answered(requests: AsyncIterator[bytes], context: Context) -> Any:
            metadata: Any = context.invocation_metadata() or ()
            request_id = chosen_id(metadata)
            context.set_trailing_metadata(((REQUEST_ID, request_id),))
            try:
                host, remaining = _host(context.peer()), context.time_remaining()
                caller = caller_of(method, request_id, metadata, host=host, remaining=remaining)
                if not foreign:
                    caller = self._calls.identified(caller)
                CALLER.set(caller)
                return await serve(requests, context, caller)
            except SelvageError as error:
                await abort(context, self._tell(method, error), request_id)

        return answered if self._rpcs is None or foreign else _observed(answered, self._rpcs, method, kind)

    def _checked(self, handler: Any) -> ServeCall:
        """Serves a health check, which no load of other calls refuses."""

        async def checked(_: AsyncIterator[bytes], context: Context, caller: Caller) -> None:
            with self._calls.admission.check():
                raw = await self._calls.admission.checks.read(context.read)
                request = await self._parse_names(handler.request_deserializer, raw)
                self._let_go_unread(context)
                await context.write((await handler.unary_unary(request, context)).SerializeToString())

        return checked

    def _watched(self, handler: Any) -> ServeCall:
        """Serves a watch of health, or reflection: a stream of its caller, which ends as others do."""

        async def watched(_: AsyncIterator[bytes], context: Context, caller: Caller) -> None:
            async def serve(messages: _Messages, context: Context) -> None:
                with self._calls.stream(caller, watch=True) as stream:
                    await either(answer(messages, context), stream.until_ended())

            receive = partial(self._calls.admission.watches.read, context.read)
            messages = _Messages(receive, partial(self._parse_names, handler.request_deserializer))
            await self._streamed(messages, serve, context)

        async def answer(requests: AsyncIterator[Message], context: Context) -> None:
            if handler.request_streaming:
                await _write(handler.stream_stream(requests, context), context)
            else:
                async for request in requests:
                    await _write(handler.unary_stream(request, context), context)

        return watched

    def _unary(self, handler: Any) -> ServeCall:
        admission = self._calls.admission

        async def unary(_: AsyncIterator[bytes], context: Context, caller: Caller) -> bytes:
            if caller.remaining is None:
                return await self._calls.answer(caller, partial(work, context))
            with self._calls.running(caller):  # gRPC itself cancels it at its deadline
                return await work(context)

        async def work(context: Context) -> bytes:
            raw = await admission.reads.read(context.read)
            with admission.hold(_size(raw)):
                request = await self._parse(handler.request_deserializer, raw)
                del raw  # a large one is held once, not twice
                reply = await self._serialise(await handler.unary_unary(request, context), admission.reserved)
            self._until_read(context, len(reply))
            return reply

        return unary

    def _down(self, handler: Any) -> ServeCall:
        """Serves methods with one request and many responses."""

        async def down(_: AsyncIterator[bytes], context: Context, caller: Caller) -> None:
            with self._calls.running(caller):
                raw = await self._calls.admission.reads.read(context.read)
                request = await self._parse(handler.request_deserializer, raw)
                async for response in handler.unary_stream(request, context):
                    await context.write(response.SerializeToString())

        return down

    def _both_ways(self, handler: Any) -> ServeCall:
        """Serves streams in both directions: requests are parsed here, responses are bytes that the servicer writes.

        Such a stream is not bounded like a call: its servicer decides what it holds and when it ends.
        """

        async def both_ways(_: AsyncIterator[bytes], context: Context, caller: Caller) -> None:
            await self._streamed(self._messages(handler, context), handler.stream_stream, context)

        return both_ways

    def _up(self, handler: Any) -> ServeCall:
        """Serves streams of requests with one response, a message."""

        async def up(_: AsyncIterator[bytes], context: Context, caller: Caller) -> bytes:
            messages = self._messages(handler, context)
            reply: bytes = (await self._streamed(messages, handler.stream_unary, context)).SerializeToString()
            self._until_read(context, len(reply))
            return reply

        return up

    def _messages(self, handler: Any, context: Context) -> _Messages:
        return _Messages(context.read, partial(self._parse, handler.request_deserializer))

    async def _streamed(self, messages: _Messages, serve: Callable[..., Awaitable[Any]], context: Context) -> Any:
        try:
            return await serve(messages, context)
        except SelvageError:
            self._let_go_unread(context)
            raise

    def _until_read(self, context: Context, size: int) -> None:
        """Counts a large reply as unread until its caller has it; ends the call of one that does not read in time."""
        if size <= LARGE_REPLY:
            return
        is_read = self._calls.admission.hold_reply(size)
        context.add_done_callback(lambda _: is_read())  # type: ignore[arg-type]
        self._let_go_unread(context)

    def _let_go_unread(self, context: Context) -> None:
        """Ends the call if its caller does not read the end in time."""
        task = asyncio.current_task()
        assert task is not None  # of the whole call: it ends when the reply has left
        timer = asyncio.get_running_loop().call_later(self._calls.admission.bounds.read_seconds, task.cancel)
        context.add_done_callback(lambda _: timer.cancel())  # type: ignore[arg-type]

    async def _parse(self, parse: Callable[[bytes], Message], raw: Any) -> Message:
        if raw is grpc.aio.EOF:
            raise InvalidInput("the call ended without a message")
        try:
            if len(raw) <= THREAD_BYTES:
                return parse(raw)
            return await offload(self._threads, len(raw), partial(self._parse_large, parse), raw)
        except DecodeError:
            raise InvalidInput("the request is not a message of this method") from None
        except MemoryError:
            raise InputTooLarge("there is no memory to read this request") from None

    def _parse_large(self, parse: Callable[[bytes], Message], raw: bytes) -> Message:
        self._check_large(raw)
        return parse(raw)

    async def _parse_names(self, parse: Callable[[bytes], Message], raw: Any) -> Message:
        """Parses a request of health or reflection. Raises LimitExceeded, unparsed, for one that is large."""
        if raw is not grpc.aio.EOF:
            check_names(raw, {field.number: field.name for field in parse(b"").DESCRIPTOR.fields})
        return await self._parse(parse, raw)

    def _serialise(self, message: Message, size: int) -> Coroutine[Any, Any, bytes]:
        """Writes a message, in a thread if large. `size`: bytes reserved for it, as protobuf cannot tell."""
        return offload(self._threads, size, type(message).SerializeToString, message)


class _Messages:
    """The parsed requests of a stream; it goes on after a malformed one.

    `size`: that of the last request, in bytes.
    """

    def __init__(self, receive: Callable[[], Awaitable[Any]], parse: Callable[[Any], Awaitable[Message]]) -> None:
        self._receive, self._parse = receive, parse
        self.size = 0

    def __aiter__(self) -> _Messages:
        return self

    async def __anext__(self) -> Message:
        """Reads and parses the next request. Raises InvalidInput, InputTooLarge."""
        self.size = 0
        raw = await self._receive()
        if raw is grpc.aio.EOF:
            raise StopAsyncIteration
        self.size = len(raw)
        return await self._parse(raw)


def _observed(serve: Callable[..., Awaitable[Any]], rpcs: Rpcs, method: str, kind: str) -> Any:
    async def observed(requests: AsyncIterator[bytes], context: Context) -> Any:
        start, code = time.monotonic(), "UNKNOWN"
        rpcs.started(method, kind)
        try:
            reply = await serve(requests, context)
            code = "OK"
            return reply
        except grpc.aio.AbortError:
            code = _code(context)
            raise
        except asyncio.CancelledError:
            code = CANCELLED
            raise
        finally:
            rpcs.ended(method, kind, code, time.monotonic() - start)

    return observed


def _code(context: Context) -> str:
    """The code of an aborted call; grpc.aio returns its number, although its types say otherwise."""
    code: Any = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else CODES.get(code, "UNKNOWN")


def _host(peer: str) -> str:
    """The peer ipv4:10.0.0.7:4711 or ipv6:%5B::1%5D:4711 without its port, so that a machine is one caller."""
    return peer.rpartition(":")[0] if peer.startswith("ip") else peer


async def _write(replies: AsyncIterator[Message], context: Context) -> None:
    async for reply in replies:
        await context.write(reply.SerializeToString())


def _size(raw: Any) -> int:
    return 0 if raw is grpc.aio.EOF else len(raw)

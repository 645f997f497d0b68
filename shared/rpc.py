"""What both servers and all channels have in common: options, status, one interceptor, request ids.

Options and their reasons are facts that were tried with grpcio 1.85; see docs/decisions.md.
"""

from __future__ import annotations  # grpcio's own classes take no type arguments at run time

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

import grpc
import structlog
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from shared.codec import duration_from_pb, duration_to_pb
from shared.errors import (
    DeadlineExceeded,
    Internal,
    InvalidInput,
    LimitExceeded,
    SelvageError,
    WorkerUnavailable,
    error_classes,
)
from shared.offload import offload

MESSAGE_BYTES = 64 * 1024 * 1024
REQUEST_ID = "x-request-id"
MESSAGE_LETTERS = 1000
"""An error travels as metadata, three times over, and metadata has 8 KiB."""

Options = list[tuple[str, int]]
log = structlog.get_logger("rpc")


PENDING = ("grpc.server.max_pending_requests", "grpc.server.max_pending_requests_hard_limit")
PENDING_CALLS = 100_000


def server_options(*, connection_age: bool) -> Options:
    """`connection_age`: whether clients reconnect every five minutes, so that balancers see new replicas."""
    ages = [("grpc.max_connection_age_ms", 300_000), ("grpc.max_connection_age_grace_ms", 600_000)]
    return [
        ("grpc.max_receive_message_length", MESSAGE_BYTES),
        ("grpc.max_send_message_length", MESSAGE_BYTES),
        ("grpc.so_reuseport", 0),  # else a second server binds the same port silently
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        # Of more calls than this that Python has not taken yet, grpc cancels some at random; ours are refused by name.
        (PENDING[0], PENDING_CALLS),
        (PENDING[1], PENDING_CALLS),
        *(ages if connection_age else []),
    ]


def channel_options() -> Options:
    return [
        ("grpc.max_receive_message_length", MESSAGE_BYTES),
        ("grpc.max_send_message_length", MESSAGE_BYTES),
        ("grpc.per_rpc_retry_buffer_size", MESSAGE_BYTES),  # else a large request silently gets no retry
        ("grpc.enable_http_proxy", 0),  # an http_proxy meant for other things would catch even loopback targets
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.keepalive_time_ms", 15_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


def to_status(error: SelvageError) -> status_pb2.Status:
    """The `google.rpc.Status` of an error: ErrorInfo always, BadRequest and RetryInfo where they apply."""
    details: list[Message] = [error_details_pb2.ErrorInfo(reason=error.reason, domain="selvage")]
    if error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=error.message[:MESSAGE_LETTERS]
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after is not None:
        details.append(error_details_pb2.RetryInfo(retry_delay=duration_to_pb(error.retry_after)))
    status = status_pb2.Status(code=grpc.StatusCode[error.status].value[0], message=error.message[:MESSAGE_LETTERS])
    for detail in details:
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    return status


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: SelvageError, request_id: str) -> None:
    """Ends the call with the error's status, details and trailers; always raises."""
    trailers: list[tuple[str, str | bytes]] = [(REQUEST_ID, request_id)]
    trailers += rpc_status.to_status(to_status(error)).trailing_metadata
    if error.retry_after is not None:
        trailers.append(("grpc-retry-pushback-ms", str(round(error.retry_after * 1000))))
    await context.abort(grpc.StatusCode[error.status], error.message[:MESSAGE_LETTERS], tuple(trailers))


def to_domain_error(error: grpc.aio.AioRpcError) -> SelvageError:
    """What a failed call to another service of ours means: its own error, or what the transport says.

    A connection that breaks shows as UNAVAILABLE, CANCELLED, INTERNAL or UNKNOWN, whatever was under way.
    """
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value if isinstance(value, bytes) else value.encode())
            return _from_status(status)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded("the worker did not answer in time")
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return LimitExceeded(f"a message to or from the worker is over {MESSAGE_BYTES} bytes")
    return WorkerUnavailable(f"the connection to the worker failed ({error.code().name})", retry_after=1.0)


def _from_status(status: status_pb2.Status) -> SelvageError:
    info, violations, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), None
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(violations)
        if detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
            retry = duration_from_pb(delay)
    field = violations.field_violations[0].field if violations.field_violations else ""
    return error_classes().get(info.reason, Internal)(status.message, field=field, retry_after=retry)


def request_id_of(metadata: Any) -> str:
    """The caller's id where it gave a sensible one, else a new one."""
    for key, value in metadata or ():
        if key == REQUEST_ID and isinstance(value, str) and 0 < len(value) <= 128 and value.isprintable():
            return value
    return uuid.uuid4().hex


def call_metadata() -> tuple[tuple[str, str], ...]:
    """What an outgoing call carries on: the id of the request that it serves."""
    request_id = structlog.contextvars.get_contextvars().get("request_id")
    return ((REQUEST_ID, request_id),) if request_id else ()


class Calls(grpc.aio.ServerInterceptor):
    """Around every call of ours: parses and serialises, bounds its time, turns errors into statuses, logs it.

    Handlers below it take raw bytes, so that a message that is none becomes INVALID_ARGUMENT (grpcio alone
    says UNKNOWN and names a Python class), and large ones are parsed in a thread.
    """

    def __init__(self, *, timeout: float | None, threads: Executor) -> None:
        """`timeout`: seconds for a call that brings no deadline; None for no bound."""
        self._timeout = timeout
        self._threads = threads
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Returns when no call of ours runs; health watches, which never end, do not count."""
        await self._idle.wait()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler: Any = await continuation(handler_call_details)
        name = handler_call_details.method
        if handler is None or handler.request_streaming or not name.startswith("/selvage."):
            return handler  # type: ignore[no-any-return]

        async def unary(raw: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            with self._counted():
                async with _Call(name, context), asyncio.timeout(self._bound(context)):
                    request = await self._parse(handler.request_deserializer, raw)
                    return await self._serialise(await handler.unary_unary(request, context))

        async def stream(raw: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
            with self._counted():
                async with _Call(name, context):
                    request = await self._parse(handler.request_deserializer, raw)
                    async for response in handler.unary_stream(request, context):
                        yield await self._serialise(response)

        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)

    def _bound(self, context: grpc.aio.ServicerContext[Any, Any]) -> float | None:
        return self._timeout if context.time_remaining() is None else None

    async def _parse(self, parse: Callable[[bytes], Message], raw: bytes) -> Message:
        try:
            return await offload(self._threads, len(raw), parse, raw)
        except DecodeError:
            raise InvalidInput("the request is not a message of this method") from None

    async def _serialise(self, message: Message) -> bytes:
        return await offload(self._threads, message.ByteSize(), type(message).SerializeToString, message)


class _Call:
    """One call: its id, its outcome, its line in the log."""

    def __init__(self, name: str, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._context = context
        self._name = name
        self._start = time.monotonic()

    async def __aenter__(self) -> None:
        self._request_id = request_id_of(self._context.invocation_metadata())
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=self._request_id)
        self._context.set_trailing_metadata(((REQUEST_ID, self._request_id),))

    async def __aexit__(self, kind: object, raised: BaseException | None, trace: object) -> None:
        error = self._error(raised)
        code = error.status if error else "CANCELLED" if raised else "OK"
        milliseconds = round((time.monotonic() - self._start) * 1e3, 2)
        reason = {"reason": error.reason} if error else {}
        log.info("call", method=self._name, code=code, milliseconds=milliseconds, **reason)
        if error:
            await abort(self._context, error, self._request_id)

    def _error(self, raised: BaseException | None) -> SelvageError | None:
        """What the caller is told; a bug keeps its trace in the log and out of the message."""
        if raised is None or isinstance(raised, asyncio.CancelledError | GeneratorExit):
            return None
        if isinstance(raised, SelvageError):
            return raised
        if isinstance(raised, TimeoutError):
            return DeadlineExceeded("the call brought no deadline and outlasted the default one")
        if isinstance(raised, grpc.aio.AbortError):
            return None
        log.error("bug", method=self._name, exc_info=raised)
        return Internal("an internal error; the log of the service has it under this request id")

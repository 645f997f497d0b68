"""How both clients send: attempts of a split call, and streams, over one channel of an event loop."""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf.message_factory import GetMessageClass

from selvage.calls.split_call import Attempt, RetryPolicy, SplitCall
from selvage.calls.streamed_call import END_SECONDS, StreamedCall
from selvage.connection import Settings
from selvage.errors import Cancelled, Internal, SelvageError, Unavailable, from_call, from_ended_stream
from selvage.messages.inputs import Operation
from selvage.v1 import classification_pb2, embedding_pb2, model_pb2, ranking_pb2
from selvage.v1.embedding_pb2 import EmbedStreamRequest

R = TypeVar("R")
WRITE_ERRORS = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError)
"""What writing to a stream that has ended raises; reading it tells why it ended."""
ACCEPT_SECONDS = 5.0
"""Longest wait for the headers that accept a stream. The service sends them at once; a proxy may hold them back."""


@dataclass(frozen=True, slots=True)
class Rpc:
    """An rpc of the contract. `path`: its name as gRPC sends it. `reply`: the function that parses a reply's bytes."""

    path: str
    reply: Callable[[bytes], Any]


RPCS: dict[type[Any], Rpc] = {
    GetMessageClass(method.input_type): Rpc(
        f"/{service.full_name}/{method.name}", GetMessageClass(method.output_type).FromString
    )
    for contract in (embedding_pb2, ranking_pb2, classification_pb2, model_pb2)
    for service in contract.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
"""The rpcs of the public contract, by the class of their request. Read from the contract's descriptors."""


class Transport:
    """A channel that the first call opens, because it belongs to the event loop that runs then."""

    def __init__(self, settings: Settings, owner: str = "client") -> None:
        """`owner`: what errors call the object that is closed."""
        self._settings, self._owner = settings, owner
        self._retries = RetryPolicy(settings.retries)
        self._channel: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._methods: dict[type[Any], Callable[..., Any]] = {}
        self._closed = False

    async def close(self) -> None:
        """Ends calls in progress, and the connection."""
        self._closed = True
        channel, self._channel = self._channel, None
        self._methods.clear()
        if channel is not None:
            await channel.close()

    def split(self, operation: Operation[R], show_progress: Callable[[int], None]) -> SplitCall[R]:
        """An operation as a call that is split into requests. Raises InvalidInput for a time limit of no sense."""
        seconds = self._settings.timeout if operation.seconds is None else operation.seconds
        return SplitCall(operation, seconds=seconds, retries=self._retries, show_progress=show_progress)

    async def send_all(self, split_call: SplitCall[Any]) -> None:
        """Sends attempts, several at a time, until the call is done. Raises SelvageError."""
        in_progress: set[asyncio.Task[None]] = set()
        most = self._settings.in_flight
        try:
            while True:
                attempts: list[Attempt] = []
                while len(in_progress) + len(attempts) < most and (attempt := split_call.next_attempt()) is not None:
                    attempts.append(attempt)
                if split_call.done:
                    return
                if len(attempts) == 1 and not in_progress:  # as most calls: nothing else is to be sent meanwhile
                    await self._send(split_call, attempts[0])
                    continue
                in_progress.update(asyncio.ensure_future(self._send(split_call, attempt)) for attempt in attempts)
                wait = split_call.wait_seconds()
                if not in_progress:
                    await asyncio.sleep(wait or 0)
                    continue
                ended, _ = await asyncio.wait(in_progress, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()
                    in_progress.remove(task)
        finally:
            if in_progress:
                for task in in_progress:
                    task.cancel()
                await asyncio.gather(*in_progress, return_exceptions=True)

    async def advance(self, streamed: StreamedCall, stream: "EmbeddingStream | None") -> "EmbeddingStream | None":
        """Sends the requests of a streamed call that are ready, and records what has come.

        It waits where no text is wanted. `stream`: the open stream, if any. Returns the stream that is open afterwards.
        Raises SelvageError.
        """
        try:
            while (request := streamed.next_request()) is not None:
                stream = stream or EmbeddingStream(self._method(EmbedStreamRequest), self._settings)
                stream.send(request)
            if stream is None:
                await asyncio.sleep(streamed.wait_seconds() or 0)
            elif await stream.record_events(streamed, streamed.listen_seconds()):
                stream = None
        except BaseException:
            if stream is not None:
                await stream.close()
            raise
        return stream

    async def _send(self, split_call: SplitCall[Any], attempt: Attempt) -> None:
        """Sends an attempt, and records its reply or its failure. Raises SelvageError."""
        request_id, metadata = self._settings.headers()
        method = self._method(type(attempt.message))
        try:
            reply = await method(attempt.message, timeout=attempt.seconds, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            split_call.record_failure(attempt, from_call(error, request_id))
        except grpc.aio.UsageError:
            raise self._closed_error(request_id) from None  # it was closed before the call began
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self._closed_error(request_id) from None  # nobody cancelled the task: the channel was closed
        else:
            split_call.record_reply(attempt, reply)

    def _method(self, kind: type[Any]) -> Callable[..., Any]:
        """The callable for the rpc of a request's class.

        Raises Cancelled after the end, RuntimeError after a fork and on another event loop.
        """
        if self._closed:
            raise self._closed_error()
        loop = asyncio.get_running_loop()
        if self._channel is None:
            check_process()
            self._channel, self._loop = self._settings.channel(), loop
        if self._loop is not loop:
            raise RuntimeError(f"the {self._owner} belongs to the event loop of its first call: make one in each")
        if kind not in self._methods:
            shape = self._channel.stream_stream if kind is EmbedStreamRequest else self._channel.unary_unary
            self._methods[kind] = shape(
                RPCS[kind].path, request_serializer=kind.SerializeToString, response_deserializer=RPCS[kind].reply
            )
        return self._methods[kind]

    def _closed_error(self, request_id: str = "") -> Cancelled:
        return Cancelled(f"the {self._owner} was closed", request_id=request_id)


_process: list[int] = []
"""The process in which a client has made the first call, and so started the threads of gRPC's asyncio."""


def check_process() -> None:
    """Raises RuntimeError where this process was forked from one in which a client had made calls.

    The threads of gRPC's asyncio are missing here, and cannot be started again: calls would wait for ever.
    """
    if not _process:
        _process.append(os.getpid())
    if _process != [os.getpid()]:
        raise RuntimeError("a client had made calls before this process was forked: fork earlier, or spawn processes")


class EmbeddingStream:
    """An open EmbedStream. Tasks write and read it, so that replies come while the caller does other things."""

    def __init__(self, method: Callable[..., Any], settings: Settings) -> None:
        self._events: deque[Any] = deque()
        self._has_events = asyncio.Event()
        self._requests: asyncio.Queue[EmbedStreamRequest | None] = asyncio.Queue()
        self._request_id, metadata = settings.headers()
        self._call = method(metadata=metadata)
        self._tasks = [asyncio.ensure_future(self._read()), asyncio.ensure_future(self._write())]

    def send(self, request: EmbedStreamRequest) -> None:
        """Sends a request after those before it, without waiting."""
        self._requests.put_nowait(request)

    async def record_events(self, streamed: StreamedCall, seconds: float | None) -> bool:
        """Records replies and the end of the stream; waits up to `seconds` for the first, None: until there is one.

        Returns whether the stream has ended.
        """
        await self._wait_for_event(seconds)
        if not self.record_replies(streamed):
            return False
        await self.close()
        streamed.record_stream_end(self._events[0])
        return True

    def record_replies(self, streamed: StreamedCall) -> bool:
        """Records the replies that have come. Returns whether the stream has ended. May be called in any thread."""
        while self._events and not isinstance(self._events[0], SelvageError):
            streamed.record_reply(self._events.popleft(), self._request_id)
        return bool(self._events)

    async def close(self, *, cancel: bool = True) -> None:
        """Ends the requests. `cancel`: ends the replies too."""
        try:
            if not cancel:
                self._requests.put_nowait(None)
                await asyncio.wait(self._tasks, timeout=END_SECONDS)
        finally:
            self._call.cancel()
            self._tasks[1].cancel()
        await asyncio.wait(self._tasks)

    async def _wait_for_event(self, seconds: float | None) -> None:
        """Waits until there is an event. With 0 seconds it still lets other tasks run."""
        if seconds == 0:
            await asyncio.sleep(0)
            return
        if not self._events:
            self._has_events.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._has_events.wait()

    async def _write(self) -> None:
        try:
            # First the service accepts the call: grpc.aio reports INTERNAL to a caller that writes to a refused call.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._call.initial_metadata(), ACCEPT_SECONDS)
            while (request := await self._requests.get()) is not None:
                await self._call.write(request)
            await self._call.done_writing()
        except WRITE_ERRORS:
            return
        except Exception as error:  # otherwise the caller would wait for ever
            self._add_event(Internal(f"the stream could not be written: {error!r}", request_id=self._request_id))

    async def _read(self) -> None:
        try:
            while (reply := await self._call.read()) is not grpc.aio.EOF:
                self._add_event(reply)
        except grpc.aio.AioRpcError as error:
            self._add_event(from_ended_stream(error, self._request_id))
        except asyncio.CancelledError:  # of the call; nobody cancels this task
            self._add_event(Cancelled("the stream was cancelled", request_id=self._request_id))
        except Exception as error:  # otherwise the caller would wait for ever
            self._add_event(Internal(f"the stream could not be read: {error!r}", request_id=self._request_id))
        else:
            self._add_event(Unavailable("the stream was ended", retry_after=0.0, request_id=self._request_id))

    def _add_event(self, event: Any) -> None:
        self._events.append(event)
        self._has_events.set()

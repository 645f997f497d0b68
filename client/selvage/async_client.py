"""The client for asyncio.

`calls.methods` makes requests and reads replies; `SplitCall` and `StreamedCall` decide what to send and when.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import grpc

from selvage.calls import methods
from selvage.calls.progress import progress_shown
from selvage.calls.retries import RetryPolicy
from selvage.calls.rpcs import RPCS
from selvage.calls.signatures import as_method
from selvage.calls.split_call import Attempt, Operation, SplitCall
from selvage.calls.streamed_call import END_SECONDS, StreamedCall
from selvage.connection import TLS, Settings
from selvage.errors import Cancelled, Internal, SelvageError, Unavailable, from_call, from_ended_stream
from selvage.target import check_target
from selvage.v1.embedding_pb2 import EmbedStreamRequest

P = ParamSpec("P")
R = TypeVar("R")
WRITE_ERRORS = (grpc.aio.AioRpcError, asyncio.InvalidStateError)
"""What writing to a stream that has ended raises; reading it tells why it ended."""
ACCEPT_SECONDS = 5.0
"""Longest wait for the headers that accept a stream. The service sends them at once; a proxy may hold them back."""


def awaited(
    method: Callable[Concatenate[Any, P], Operation[R]],
) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, R]]:
    """Makes a method whose result is awaited."""

    async def run(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(method(self, *args, **kwargs))

    return as_method(run, method)


def iterating(
    method: Callable[Concatenate[Any, P], StreamedCall],
) -> Callable[Concatenate["AsyncClient", P], AsyncIterator[Any]]:
    """Makes a method that yields the results of its streamed call."""

    def run(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Any]:
        return self._iterate(method(self, *args, **kwargs))

    return as_method(run, method)


class AsyncClient:
    """The client for asyncio: the methods of `Client`, to be awaited, and `async for` over `embed_stream`.

    It belongs to the event loop of its first call. Cancelling a task cancels its calls.
    """

    def __init__(
        self,
        target: str = "127.0.0.1:50051",
        *,
        model: str = "",
        key: str = "",
        tls: TLS | bool = False,
        timeout: float = 60.0,
        retries: int = 5,
        in_flight: int = 4,
        fairness_key: str = "",
        priority: str = "",
        metadata: Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        """Takes the options of `Client`. Nothing is sent yet. Raises ValueError."""
        check_target(target, tls=bool(tls))
        self.settings = Settings.of(
            target,
            model=model,
            key=key,
            tls=tls,
            timeout=timeout,
            retries=retries,
            in_flight=in_flight,
            fairness_key=fairness_key,
            priority=priority,
            metadata=metadata,
        )
        self._retries = RetryPolicy(retries)
        self._opened: Any = None
        self._closed = False

    embed = awaited(methods.embed)
    rerank = awaited(methods.rerank)
    score = awaited(methods.score)
    max_sim = awaited(methods.max_sim)
    classify = awaited(methods.classify)
    classify_tokens = awaited(methods.classify_tokens)
    tokenize = awaited(methods.tokenize)
    detokenize = awaited(methods.detokenize)
    model = awaited(methods.model)
    models = awaited(methods.models)
    embed_stream = iterating(methods.embed_stream)

    async def close(self) -> None:
        """Ends calls in progress, and the connection."""
        self._closed = True
        if self._opened is not None:
            await self._opened.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self.settings})"

    @property
    def _channel(self) -> Any:
        """The channel, which the first call makes, because it belongs to the loop that runs then. Raises Cancelled."""
        if self._closed:
            raise Cancelled("the client was closed")
        if self._opened is None:
            self._opened = self.settings.channel(grpc.aio)
        return self._opened

    async def _run(self, operation: Operation[R]) -> R:
        seconds = self.settings.timeout if operation.seconds is None else operation.seconds
        with progress_shown(operation.size, operation.progress) as show_progress:
            split_call = SplitCall(operation, seconds=seconds, retries=self._retries, show_progress=show_progress)
            await self._send_all(split_call)
            return split_call.result()

    async def _send_all(self, split_call: SplitCall[Any]) -> None:
        """Sends attempts, several at a time, until the call is done. Raises SelvageError."""
        in_progress: dict[asyncio.Future[Any], tuple[Attempt, str]] = {}
        try:
            while True:
                while len(in_progress) < self.settings.in_flight and (attempt := split_call.next_attempt()) is not None:
                    request_id, task = self._send(attempt)
                    in_progress[task] = attempt, request_id
                if split_call.done:
                    return
                wait = split_call.wait_seconds()
                if not in_progress:
                    await asyncio.sleep(wait or 0)
                    continue
                ended, _ = await asyncio.wait(in_progress, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    attempt, request_id = in_progress.pop(task)
                    if task.cancelled():  # not by this coroutine: the client was closed
                        raise Cancelled("the client was closed", request_id=request_id)
                    try:
                        reply = task.result()
                    except grpc.aio.AioRpcError as error:
                        split_call.record_failure(attempt, from_call(error, request_id))
                    else:
                        split_call.record_reply(attempt, reply)
        finally:
            for task in in_progress:
                task.cancel()
            await asyncio.gather(*in_progress, return_exceptions=True)

    def _send(self, attempt: Attempt) -> tuple[str, asyncio.Future[Any]]:
        """Begins the call of an attempt; its request id, and a task whose result is the reply."""
        kind = type(attempt.message)
        request_id, metadata = self.settings.headers()
        method = self._channel.unary_unary(
            RPCS[kind].path, request_serializer=kind.SerializeToString, response_deserializer=RPCS[kind].reply
        )

        async def reply() -> Any:
            return await method(attempt.message, timeout=attempt.seconds, metadata=metadata)

        return request_id, asyncio.ensure_future(reply())

    async def _iterate(self, streamed: StreamedCall) -> AsyncIterator[Any]:
        """Yields results while it reads and sends texts. Raises SelvageError."""
        source, stream = _as_async(streamed.source), None
        try:
            while True:
                for result in streamed.ready_results():
                    yield result
                if streamed.done:
                    return
                if streamed.wants_text:
                    try:
                        streamed.add_text(await anext(source))
                    except StopAsyncIteration:
                        streamed.end_texts()
                while (request := streamed.next_request()) is not None:
                    stream = stream or _AsyncStream(self._channel, self.settings)
                    await stream.send(request)
                if stream is None:
                    await asyncio.sleep(streamed.wait_seconds() or 0)
                elif await stream.record_events(streamed, streamed.listen_seconds()):
                    stream = None
        finally:
            if stream is not None:
                await stream.close(cancel=not streamed.done)


class _AsyncStream:
    """One EmbedStream, read by a task, so that replies are received while the caller does something else."""

    def __init__(self, channel: Any, settings: Settings) -> None:
        self._events: deque[Any] = deque()
        self._has_events = asyncio.Event()
        self._request_id, metadata = settings.headers()
        rpc = RPCS[EmbedStreamRequest]
        method = channel.stream_stream(
            rpc.path, request_serializer=EmbedStreamRequest.SerializeToString, response_deserializer=rpc.reply
        )
        self._call = method(metadata=metadata)
        self._reading = asyncio.ensure_future(self._read())

    async def send(self, request: EmbedStreamRequest) -> None:
        with suppress(*WRITE_ERRORS):
            # First the service accepts the call: grpc.aio reports INTERNAL to a caller that writes to a refused call.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._call.initial_metadata(), ACCEPT_SECONDS)
            await self._call.write(request)

    async def record_events(self, streamed: StreamedCall, seconds: float | None) -> bool:
        """Records replies and the end of the stream; waits up to `seconds` for the first, None: until there is one.

        Returns whether the stream has ended.
        """
        await self._wait_for_event(seconds)
        while self._events:
            event = self._events.popleft()
            if isinstance(event, SelvageError):
                await self.close()
                streamed.record_stream_end(event)
                return True
            streamed.record_reply(event, self._request_id)
        return False

    async def close(self, *, cancel: bool = True) -> None:
        """Ends the requests. `cancel`: ends the replies too."""
        try:
            if not cancel:
                with suppress(*WRITE_ERRORS):
                    await self._call.done_writing()
                await asyncio.wait([self._reading], timeout=END_SECONDS)
        finally:
            self._call.cancel()
        await asyncio.wait([self._reading])

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


async def _as_async(texts: Any) -> AsyncIterator[Any]:
    """Iterates over texts that come from an iterator or an asynchronous iterator."""
    if hasattr(texts, "__aiter__"):
        async for text in texts:
            yield text
    else:
        for text in texts:
            yield text

"""The client for asyncio. `methods` say what is asked and read replies; `flight` and `streaming` decide on retries."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import grpc

from selvage.calls import methods
from selvage.calls.progress import shown
from selvage.calls.retries import RetryPolicy
from selvage.calls.rpcs import RPCS
from selvage.calls.signatures import as_method
from selvage.calls.split_call import Attempt, CallSteps, Operation
from selvage.calls.streamed_call import Streaming
from selvage.connection import TLS, Settings
from selvage.errors import Cancelled, Internal, SelvageError, Unavailable, from_call, from_ended_stream
from selvage.v1.embedding_pb2 import EmbedStreamRequest

P = ParamSpec("P")
R = TypeVar("R")
ENDED = (grpc.aio.AioRpcError, asyncio.InvalidStateError)
"""What writing raises where the stream has ended; reading tells how."""
LET_IN = 5.0
"""Seconds to hear that a stream is let in. The service says so at once; a proxy may keep it back."""
LAST = 5.0
"""Seconds for a stream to end once everything is answered."""


def awaited(
    method: Callable[Concatenate[Any, P], Operation[R]],
) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, R]]:
    """A method whose result is awaited."""

    async def run(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(method(self, *args, **kwargs))

    return as_method(run, method)


def iterating(
    method: Callable[Concatenate[Any, P], Streaming],
) -> Callable[Concatenate["AsyncClient", P], AsyncIterator[Any]]:
    """A method that yields what its stream brings."""

    def run(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Any]:
        return self._pour(method(self, *args, **kwargs))

    return as_method(run, method)


class AsyncClient:
    """`Client` for asyncio: the same methods, to be awaited, and `async for` over `embed_stream`.

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
        """As `Client`."""
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
        """Ends calls that are under way, and the connection."""
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
        """Made by the first call: a channel belongs to the loop that runs then. Raises Cancelled."""
        if self._closed:
            raise Cancelled("the client was closed")
        if self._opened is None:
            self._opened = self.settings.channel(grpc.aio)
        return self._opened

    async def _run(self, operation: Operation[R]) -> R:
        seconds = self.settings.timeout if operation.seconds is None else operation.seconds
        with shown(operation.size, operation.progress) as told:
            flight = CallSteps(operation, seconds=seconds, retries=self._retries, told=told)
            await self._fly(flight)
            return flight.result()

    async def _fly(self, flight: CallSteps[Any]) -> None:
        under_way: dict[asyncio.Future[Any], tuple[Attempt, str]] = {}
        try:
            while True:
                while len(under_way) < self.settings.in_flight and (attempt := flight.next()) is not None:
                    request_id, task = self._send(attempt)
                    under_way[task] = attempt, request_id
                if flight.done:
                    return
                if not under_way:
                    await asyncio.sleep(flight.pause() or 0)
                    continue
                ended, _ = await asyncio.wait(under_way, timeout=flight.pause(), return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    attempt, request_id = under_way.pop(task)
                    if task.cancelled():  # by nobody who waits for it: the client was closed
                        raise Cancelled("the client was closed", request_id=request_id)
                    try:
                        reply = task.result()
                    except grpc.aio.AioRpcError as error:
                        flight.failed(attempt, from_call(error, request_id))
                    else:
                        flight.answered(attempt, reply)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    def _send(self, attempt: Attempt) -> tuple[str, asyncio.Future[Any]]:
        kind = type(attempt.message)
        request_id, metadata = self.settings.headers()
        method = self._channel.unary_unary(
            RPCS[kind].path, request_serializer=kind.SerializeToString, response_deserializer=RPCS[kind].reply
        )

        async def answer() -> Any:
            return await method(attempt.message, timeout=attempt.seconds, metadata=metadata)

        return request_id, asyncio.ensure_future(answer())

    async def _pour(self, streaming: Streaming) -> AsyncIterator[Any]:
        source, stream = _each(streaming.source), None
        try:
            while True:
                for found in streaming.ready():
                    yield found
                if streaming.done:
                    return
                if streaming.wants:
                    try:
                        streaming.add(await anext(source))
                    except StopAsyncIteration:
                        streaming.finish()
                while (batch := streaming.next()) is not None:
                    stream = stream or _Stream(self._channel, self.settings)
                    await stream.send(batch)
                if stream is None:
                    await asyncio.sleep(streaming.pause() or 0)
                elif await stream.heard(streaming, streaming.patience()):
                    stream = None
        finally:
            if stream is not None:
                await stream.close(cancel=not streaming.done)


class _Stream:
    """One EmbedStream. A task reads it, so that it goes on while the caller does something else."""

    def __init__(self, channel: Any, settings: Settings) -> None:
        self._heard: deque[Any] = deque()
        self._some = asyncio.Event()
        self._request_id, metadata = settings.headers()
        rpc = RPCS[EmbedStreamRequest]
        method = channel.stream_stream(
            rpc.path, request_serializer=EmbedStreamRequest.SerializeToString, response_deserializer=rpc.reply
        )
        self._call = method(metadata=metadata)
        self._reading = asyncio.ensure_future(self._read())

    async def send(self, batch: EmbedStreamRequest) -> None:
        with suppress(*ENDED):
            # Until the call is let in: grpc.aio tells whoever writes to a call that is refused of INTERNAL instead.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._call.initial_metadata(), LET_IN)
            await self._call.write(batch)

    async def heard(self, streaming: Streaming, seconds: float | None) -> bool:
        """Tells what has come, after so many seconds at most if nothing has; whether the stream has ended."""
        await self._wait(seconds)
        while self._heard:
            event = self._heard.popleft()
            if isinstance(event, SelvageError):
                await self.close()
                streaming.lost(event)
                return True
            streaming.received(event, self._request_id)
        return False

    async def close(self, *, cancel: bool = True) -> None:
        """Nothing more is sent; `cancel`: nor is anything more to come."""
        try:
            if not cancel:
                with suppress(*ENDED):
                    await self._call.done_writing()
                await asyncio.wait([self._reading], timeout=LAST)
        finally:
            self._call.cancel()
        await asyncio.wait([self._reading])

    async def _wait(self, seconds: float | None) -> None:
        """Until something has been heard; where there is no time, others have their turn all the same."""
        if seconds == 0:
            await asyncio.sleep(0)
            return
        if not self._heard:
            self._some.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._some.wait()

    async def _read(self) -> None:
        try:
            while (reply := await self._call.read()) is not grpc.aio.EOF:
                self._tell(reply)
        except grpc.aio.AioRpcError as error:
            self._tell(from_ended_stream(error, self._request_id))
        except asyncio.CancelledError:  # of the call; nobody cancels this task
            self._tell(Cancelled("the stream was cancelled", request_id=self._request_id))
        except Exception as error:  # else whoever listens would wait for ever
            self._tell(Internal(f"the stream could not be read: {error!r}", request_id=self._request_id))
        else:
            self._tell(Unavailable("the stream was ended", retry_after=0.0, request_id=self._request_id))

    def _tell(self, event: Any) -> None:
        self._heard.append(event)
        self._some.set()


async def _each(texts: Any) -> AsyncIterator[Any]:
    """Of an iterator of either kind."""
    if hasattr(texts, "__aiter__"):
        async for text in texts:
            yield text
    else:
        for text in texts:
            yield text

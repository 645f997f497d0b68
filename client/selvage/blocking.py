"""What `Client` and `Engine` have in common: the methods, and how their calls are driven, with threads and queues.

`methods` say what is asked and read replies; `flight` and `streaming` decide on retries.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
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
from selvage.connection import Settings
from selvage.errors import Cancelled, Internal, SelvageError, Unavailable, from_call, from_ended_stream
from selvage.v1.embedding_pb2 import EmbedStreamRequest

P = ParamSpec("P")
R = TypeVar("R")


def blocking(method: Callable[Concatenate[Any, P], Operation[R]]) -> Callable[Concatenate["Blocking", P], R]:
    """A method that returns when its operation is done."""

    def run(self: "Blocking", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run(method(self, *args, **kwargs))

    return as_method(run, method)


def iterating(method: Callable[Concatenate[Any, P], Streaming]) -> Callable[Concatenate["Blocking", P], Iterator[Any]]:
    """A method that yields what its stream brings."""

    def run(self: "Blocking", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
        return self._pour(method(self, *args, **kwargs))

    return as_method(run, method)


class Blocking:
    """Threads may share one."""

    def __init__(self, settings: Settings, channel: Any) -> None:
        """`channel`: a `grpc.Channel`, or what calls like one."""
        self.settings = settings
        self._retries = RetryPolicy(settings.retries)
        self._closed = False
        self._channel = channel
        self._calls = {
            kind: channel.unary_unary(
                rpc.path, request_serializer=kind.SerializeToString, response_deserializer=rpc.reply
            )
            for kind, rpc in RPCS.items()
            if kind is not EmbedStreamRequest
        }
        self._stream = channel.stream_stream(
            RPCS[EmbedStreamRequest].path,
            request_serializer=EmbedStreamRequest.SerializeToString,
            response_deserializer=RPCS[EmbedStreamRequest].reply,
        )

    embed = blocking(methods.embed)
    rerank = blocking(methods.rerank)
    score = blocking(methods.score)
    max_sim = blocking(methods.max_sim)
    classify = blocking(methods.classify)
    classify_tokens = blocking(methods.classify_tokens)
    tokenize = blocking(methods.tokenize)
    detokenize = blocking(methods.detokenize)
    model = blocking(methods.model)
    models = blocking(methods.models)
    embed_stream = iterating(methods.embed_stream)

    def close(self) -> None:
        """Ends calls that are under way, and the connection."""
        self._closed = True
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.settings})"

    def _run(self, operation: Operation[R]) -> R:
        seconds = self.settings.timeout if operation.seconds is None else operation.seconds
        with shown(operation.size, operation.progress) as told:
            flight = CallSteps(operation, seconds=seconds, retries=self._retries, told=told)
            self._fly(flight)
            return flight.result()

    def _fly(self, flight: CallSteps[Any]) -> None:
        ended: queue.SimpleQueue[tuple[Attempt, Any, str]] = queue.SimpleQueue()
        under_way: set[Any] = set()
        try:
            while True:
                while len(under_way) < self.settings.in_flight and (attempt := flight.next()) is not None:
                    under_way.add(self._send(attempt, ended))
                if flight.done:
                    return
                if not under_way:
                    time.sleep(flight.pause() or 0)
                    continue
                try:
                    attempt, call, request_id = ended.get(timeout=flight.pause())
                except queue.Empty:
                    continue
                under_way.discard(call)
                try:
                    reply = call.result()
                except grpc.RpcError:
                    flight.failed(attempt, from_call(call, request_id))
                else:
                    flight.answered(attempt, reply)
        finally:
            for call in under_way:
                call.cancel()

    def _send(self, attempt: Attempt, ended: "queue.SimpleQueue[tuple[Attempt, Any, str]]") -> Any:
        self._check_open()
        request_id, metadata = self.settings.headers()
        call = self._calls[type(attempt.message)].future(attempt.message, timeout=attempt.seconds, metadata=metadata)
        call.add_done_callback(lambda done: ended.put((attempt, done, request_id)))
        return call

    def _check_open(self) -> None:
        if self._closed:
            raise Cancelled(f"the {type(self).__name__.lower()} was closed")

    def _pour(self, streaming: Streaming) -> Iterator[Any]:
        source, stream = iter(streaming.source), None
        try:
            while True:
                yield from streaming.ready()
                if streaming.done:
                    return
                if streaming.wants:
                    try:
                        streaming.add(next(source))
                    except StopIteration:
                        streaming.finish()
                while (batch := streaming.next()) is not None:
                    self._check_open()
                    stream = stream or _Stream(self._stream, self.settings)
                    stream.send(batch)
                if stream is None:
                    time.sleep(streaming.pause() or 0)
                elif stream.heard(streaming, streaming.patience()):
                    stream = None
        finally:
            if stream is not None:
                stream.close(cancel=not streaming.done)


class _Stream:
    """One EmbedStream. A thread reads it, so that it goes on while the caller does something else."""

    def __init__(self, method: Any, settings: Settings) -> None:
        self._requests: queue.SimpleQueue[EmbedStreamRequest | None] = queue.SimpleQueue()
        self._heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._request_id, metadata = settings.headers()
        self._call = method(iter(self._requests.get, None), metadata=metadata)
        threading.Thread(target=self._read, daemon=True, name="selvage-stream").start()

    def send(self, batch: EmbedStreamRequest) -> None:
        self._requests.put(batch)

    def heard(self, streaming: Streaming, seconds: float | None) -> bool:
        """Tells what has come, after so many seconds at most if nothing has; whether the stream has ended."""
        try:
            event = self._heard.get(timeout=seconds) if seconds is None or seconds > 0 else self._heard.get_nowait()
            while True:
                if isinstance(event, SelvageError):
                    self.close()
                    streaming.lost(event)
                    return True
                streaming.received(event, self._request_id)
                event = self._heard.get_nowait()
        except queue.Empty:
            return False

    def close(self, *, cancel: bool = True) -> None:
        """Nothing more is sent; `cancel`: nor is anything more to come."""
        self._requests.put(None)
        if cancel:
            self._call.cancel()

    def _read(self) -> None:
        try:
            for reply in self._call:
                self._heard.put(reply)
        except grpc.RpcError:
            self._heard.put(from_ended_stream(self._call, self._request_id))
        except Exception as error:  # else whoever listens would wait for ever
            self._heard.put(Internal(f"the stream could not be read: {error!r}", request_id=self._request_id))
        else:
            self._heard.put(Unavailable("the stream was ended", retry_after=0.0, request_id=self._request_id))

"""What `Client` and `Engine` have in common: their methods, and how a thread runs their calls.

`calls.methods` makes requests and reads replies; `SplitCall` and `StreamedCall` decide what to send and when.
"""

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
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
from selvage.connection import Settings
from selvage.errors import Cancelled, Internal, SelvageError, Unavailable, from_call, from_ended_stream
from selvage.v1.embedding_pb2 import EmbedStreamRequest

P = ParamSpec("P")
R = TypeVar("R")


def blocking(method: Callable[Concatenate[Any, P], Operation[R]]) -> Callable[Concatenate["Blocking", P], R]:
    """Makes a method that returns when its operation is done."""

    def run(self: "Blocking", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run(method(self, *args, **kwargs))

    return as_method(run, method)


def iterating(
    method: Callable[Concatenate[Any, P], StreamedCall],
) -> Callable[Concatenate["Blocking", P], Iterator[Any]]:
    """Makes a method that yields the results of its streamed call."""

    def run(self: "Blocking", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
        return self._iterate(method(self, *args, **kwargs))

    return as_method(run, method)


class Blocking:
    """A client whose methods block. Threads may share it."""

    def __init__(self, settings: Settings, channel: Any) -> None:
        """`channel`: a `grpc.Channel`, or an object with the same methods."""
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
        """Ends calls in progress, and the connection."""
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
        with progress_shown(operation.size, operation.progress) as show_progress:
            split_call = SplitCall(operation, seconds=seconds, retries=self._retries, show_progress=show_progress)
            self._send_all(split_call)
            return split_call.result()

    def _send_all(self, split_call: SplitCall[Any]) -> None:
        """Sends attempts, several at a time, until the call is done. Raises SelvageError."""
        ended: queue.SimpleQueue[tuple[Attempt, Any, str]] = queue.SimpleQueue()
        in_progress: set[Any] = set()
        try:
            while True:
                while len(in_progress) < self.settings.in_flight and (attempt := split_call.next_attempt()) is not None:
                    in_progress.add(self._send(attempt, ended))
                if split_call.done:
                    return
                if not in_progress:
                    time.sleep(split_call.wait_seconds() or 0)
                    continue
                try:
                    attempt, call, request_id = ended.get(timeout=split_call.wait_seconds())
                except queue.Empty:
                    continue
                in_progress.discard(call)
                try:
                    reply = call.result()
                except grpc.RpcError:
                    split_call.record_failure(attempt, from_call(call, request_id))
                else:
                    split_call.record_reply(attempt, reply)
        finally:
            for call in in_progress:
                call.cancel()

    def _send(self, attempt: Attempt, ended: "queue.SimpleQueue[tuple[Attempt, Any, str]]") -> Any:
        """Begins the call of an attempt, which is put into `ended` when it has ended."""
        self._check_open()
        request_id, metadata = self.settings.headers()
        call = self._calls[type(attempt.message)].future(attempt.message, timeout=attempt.seconds, metadata=metadata)
        call.add_done_callback(lambda done: ended.put((attempt, done, request_id)))
        return call

    def _check_open(self) -> None:
        if self._closed:
            raise Cancelled(f"the {type(self).__name__.lower()} was closed")

    def _iterate(self, streamed: StreamedCall) -> Iterator[Any]:
        """Yields results while it reads and sends texts. Raises SelvageError."""
        source, stream = iter(streamed.source), None
        try:
            while True:
                yield from streamed.ready_results()
                if streamed.done:
                    return
                if streamed.wants_text:
                    try:
                        streamed.add_text(next(source))
                    except StopIteration:
                        streamed.end_texts()
                while (request := streamed.next_request()) is not None:
                    self._check_open()
                    stream = stream or _BlockingStream(self._stream, self.settings)
                    stream.send(request)
                if stream is None:
                    time.sleep(streamed.wait_seconds() or 0)
                elif stream.record_events(streamed, streamed.listen_seconds()):
                    stream = None
        finally:
            if stream is not None:
                stream.close(cancel=not streamed.done)


class _BlockingStream:
    """One EmbedStream, read by a thread, so that replies are received while the caller does something else.

    `close` deletes the call, which takes a lock to be deleted. At the interpreter's end that might wait for ever,
    because the end stops gRPC's threads, even one that holds this lock.
    """

    def __init__(self, method: Any, settings: Settings) -> None:
        self._requests: queue.SimpleQueue[EmbedStreamRequest | None] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._request_id, metadata = settings.headers()
        self._call: Any = method(iter(self._requests.get, None), metadata=metadata)
        self._reader = threading.Thread(target=self._read, args=(self._call,), daemon=True, name="selvage-stream")
        self._reader.start()

    def send(self, request: EmbedStreamRequest) -> None:
        self._requests.put(request)

    def record_events(self, streamed: StreamedCall, seconds: float | None) -> bool:
        """Records replies and the end of the stream; waits up to `seconds` for the first, None: until there is one.

        Returns whether the stream has ended.
        """
        try:
            event = self._events.get(timeout=seconds) if seconds is None or seconds > 0 else self._events.get_nowait()
            while True:
                if isinstance(event, SelvageError):
                    self.close()
                    streamed.record_stream_end(event)
                    return True
                streamed.record_reply(event, self._request_id)
                event = self._events.get_nowait()
        except queue.Empty:
            return False

    def close(self, *, cancel: bool = True) -> None:
        """Ends the requests, waits for the end of the call and deletes it. `cancel`: ends the replies too."""
        call, self._call = self._call, None
        if call is None or sys.is_finalizing():  # the interpreter's end has stopped all threads: do not wait for them
            return
        self._requests.put(None)
        if cancel:
            call.cancel()
        if threading.current_thread() is not self._reader:  # the garbage collector closes generators in any thread
            self._reader.join(END_SECONDS)
            call.cancel()

    def _read(self, call: Any) -> None:
        try:
            for reply in call:
                self._events.put(reply)
        except grpc.RpcError as error:
            error.__traceback__ = None  # refers to this call, and the call is the error: a cycle
            self._events.put(from_ended_stream(call, self._request_id))
        except Exception as error:  # otherwise the caller would wait for ever
            self._events.put(Internal(f"the stream could not be read: {error!r}", request_id=self._request_id))
        else:
            self._events.put(Unavailable("the stream was ended", retry_after=0.0, request_id=self._request_id))

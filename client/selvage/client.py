"""The client whose methods block: those of `AsyncClient`, run on an event loop in a thread of the client's own.

gRPC's asyncio has one source of events in a process, which wakes every event loop. With grpcio 1.80 those that find
nothing log a BlockingIOError each time (grpc/grpc#25364; not so with 1.85); such records of any loop are dropped.
"""

import asyncio
import atexit
import logging
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from selvage.calls import methods
from selvage.calls.methods import as_method
from selvage.calls.progress import progress_shown
from selvage.calls.streamed_call import StreamedCall
from selvage.connection import DEFAULT, ClientOptions, Settings
from selvage.errors import Cancelled
from selvage.messages.inputs import Operation
from selvage.transport import EmbeddingStream, Transport

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
EXIT_SECONDS = 5.0
"""Longest wait, at the interpreter's exit, for the end of a loop that nobody has closed."""


def is_no_empty_wake(record: logging.LogRecord) -> bool:
    """False for the record of a loop that gRPC has woken without an event for it."""
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, BlockingIOError) and "PollerCompletionQueue" in record.getMessage())


class LoopThread:
    """An event loop that begins with the first coroutine and ends with `close`. Threads may share it.

    What was entered into it ends before the loop does, the last first. It does not survive a fork.
    """

    def __init__(self, owner: str) -> None:
        """`owner`: what errors call the object that the loop belongs to, such as "client"."""
        self._owner = owner
        self._lock = threading.RLock()  # the garbage collector may close a generator in between, which comes here again
        self._process = os.getpid()
        self._entered = AsyncExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._end: asyncio.Event | None = None
        self._closed = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine, and returns its result. An exception in this thread, such as Ctrl-C, cancels it.

        Raises Cancelled where the loop was closed before the coroutine ended, RuntimeError in a forked process.
        """
        future = self._begin(work)
        try:
            return future.result()
        except CancelledError:
            raise self._closed_error() from None
        except BaseException:
            future.cancel()
            raise
        finally:
            del future  # holds the error, whose traceback holds this frame: a cycle

    def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine that ends something, unless the loop is gone, with which it has ended. Raises nothing.

        On the thread of the loop, where the garbage collector may close a generator, it is not waited for.
        """
        with suppress(Cancelled, RuntimeError):
            if threading.current_thread() is self._thread:
                self._begin(work)
            else:
                self.run(work)

    def enter(self, context: AbstractAsyncContextManager[T]) -> T:
        """Enters a context, which is left when the loop ends."""
        return self.run(self._entered.enter_async_context(context))

    def call_at_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Has the loop call `close` when it ends, before those that were given earlier, and wait for it."""
        self._entered.push_async_callback(close)

    def stop(self) -> None:
        """Ends the loop without waiting. Coroutines that run on it are cancelled. May be called repeatedly."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._loop is not None and self._end is not None and not self._closed:
                self._loop.call_soon_threadsafe(self._end.set)
            self._closed = True

    def close(self, seconds: float | None = None) -> None:
        """Ends the loop, and waits until its thread has ended, at most so long."""
        self.stop()
        thread = self._thread
        if thread is not None and os.getpid() == self._process and threading.current_thread() is not thread:
            thread.join(seconds)

    def _begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Begins a coroutine on the loop, which the first one starts. Raises Cancelled, RuntimeError."""
        try:
            if os.getpid() != self._process and self._loop is not None:
                article = "an" if self._owner[0] in "aeiou" else "a"
                raise RuntimeError(f"{article} {self._owner} does not survive a fork: make one in each process")
            with self._lock:  # a loop ends after it, and with it what was begun: nobody waits for ever
                if self._closed:
                    raise self._closed_error()
                if self._loop is None:
                    self._start()
                assert self._loop is not None
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            work.close()
            raise

    def _start(self) -> None:
        asyncio_log = logging.getLogger("asyncio")
        asyncio_log.addFilter(is_no_empty_wake)  # again and again the same one: it is added once
        self._process = os.getpid()
        self._loop, self._end = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(
            target=_run, args=(self._loop, self._end, self._entered), daemon=True, name=f"selvage-{self._owner}"
        )
        self._thread.start()
        _started.add(self)

    def _closed_error(self) -> Cancelled:
        return Cancelled(f"the {self._owner} was closed")


def _run(loop: asyncio.AbstractEventLoop, end: asyncio.Event, entered: AsyncExitStack) -> None:
    """Runs the loop in its thread until `end` is set. It holds no owner of the loop: one that is forgotten is deleted,
    and that ends the loop."""

    async def live() -> None:
        async with entered:
            await end.wait()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(live())


_started: "weakref.WeakSet[LoopThread]" = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Ends all loops before the interpreter stops their threads, which may hold locks of gRPC."""
    for thread in list(_started):
        thread.close(EXIT_SECONDS)


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
    """What `Client` and `Engine` have in common: methods that block. Threads may share it."""

    def __init__(self, settings: Settings, loop: LoopThread, owner: str) -> None:
        """`loop`: runs the calls, and ends with this object. `owner`: what errors call this object that was closed."""
        self.settings = settings
        self._loop, self._transport = loop, Transport(settings, owner)
        loop.call_at_end(self._transport.close)
        weakref.finalize(self, loop.stop).atexit = False

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
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.settings})"

    def _run(self, operation: Operation[R]) -> R:
        with progress_shown(operation.size, operation.progress) as show_progress:
            split_call = self._transport.split(operation, show_progress)
            self._loop.run(self._transport.send_all(split_call))
            return split_call.result()

    def _iterate(self, streamed: StreamedCall) -> Iterator[Any]:
        """Yields results while it reads texts, which it does in this thread. Raises SelvageError."""
        source = iter(streamed.source)
        stream: EmbeddingStream | None = None
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
                if not streamed.only_reads or (stream is not None and stream.record_replies(streamed)):
                    stream = self._loop.run(self._transport.advance(streamed, stream))
        finally:
            if stream is not None:
                self._loop.finish(stream.close(cancel=not streamed.done))


class Client(Blocking):
    """A connection to a frontend, or to many behind one name.

    Threads may share it. Its first call starts a thread, which does not survive a fork: a process that forks makes its
    clients after the fork.
    """

    def __init__(self, target: str = DEFAULT, **options: Unpack[ClientOptions]) -> None:
        """`target`: host:port, or dns:///name:port with many addresses, which serve calls in turn.

        - `model`: the model of calls that name none; by default the only one.
        - `key`: the API key, sent as `authorization: Bearer`.
        - `tls`: True, or `TLS` with certificates of your own.
        - `timeout`: seconds for a call with all its parts and retries, by default 60; `math.inf`: as long as it takes.
        - `retries`: how often a part is sent again where the service is overloaded or unavailable, by default 5.
          Overload does not count while other parts of the call are under way.
        - `in_flight`: how many parts of a large input are sent at a time, by default 4.
        - `fairness_key`: your name to the service, which serves keys evenly.
        - `priority`: "interactive", "default" or "bulk", by default the service's.
        - `metadata`: sent with each call.

        Nothing is sent yet. Raises ValueError for values that make no sense.
        """
        settings = Settings.of(target, **options)
        super().__init__(settings, LoopThread("client"), "client")

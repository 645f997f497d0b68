"""An event loop in a thread of its own, for callers that block. Knows no messages and no calls.

gRPC's asyncio has one source of events in a process, which wakes every event loop. Those that find nothing log a
BlockingIOError each time (grpc/grpc#25364); such records are dropped here, of all loops.
"""

import asyncio
import atexit
import logging
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeVar

from selvage.errors import Cancelled

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
        self._lock = threading.Lock()
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
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._running())
        except BaseException:
            work.close()
            raise
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
        try:
            if threading.current_thread() is self._thread:
                asyncio.run_coroutine_threadsafe(work, self._running())
            else:
                self.run(work)
        except (Cancelled, RuntimeError):
            work.close()

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

    def _running(self) -> asyncio.AbstractEventLoop:
        """The loop, which the first call starts. Raises Cancelled, RuntimeError."""
        if os.getpid() != self._process and self._loop is not None:
            article = "an" if self._owner[0] in "aeiou" else "a"
            raise RuntimeError(f"{article} {self._owner} does not survive a fork: make one in each process")
        with self._lock:
            if self._closed:
                raise self._closed_error()
            if self._loop is None:
                self._start()
            assert self._loop is not None
            return self._loop

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

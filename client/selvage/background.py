"""The event loop of all blocking clients and engines of a process, in a thread that their first call starts.

gRPC's asyncio has one source of events in a process, which wakes every event loop. With grpcio 1.80 those that find
nothing log a BlockingIOError each time (grpc/grpc#25364; not so with 1.85); such records of any loop are dropped.
"""

import asyncio
import atexit
import logging
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeVar

from selvage.errors import Cancelled
from selvage.transport import check_process

T = TypeVar("T")
EXIT_SECONDS = 5.0
"""Longest wait, at the interpreter's exit, for clients that nobody has closed, and then for the loop."""


def is_no_empty_wake(record: logging.LogRecord) -> bool:
    """False for the record of a loop that gRPC has woken without an event for it."""
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, BlockingIOError) and "PollerCompletionQueue" in record.getMessage())


class LoopThread:
    """The loop, its thread, and the sessions that may use it. The interpreter's exit ends them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # the garbage collector may end a session in between, which comes here again
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: threading.Thread | None = None
        self.sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._end = asyncio.Event()
        self._process = 0

    @property
    def runs(self) -> bool:
        """Whether the loop was started, in this process: a forked one has not its thread."""
        return self.loop is not None and self._process == os.getpid()

    def started(self) -> asyncio.AbstractEventLoop:
        """The loop, started by the first call. Raises RuntimeError in a forked process."""
        check_process()
        if self.loop is None:
            logging.getLogger("asyncio").addFilter(is_no_empty_wake)
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._run, args=[loop], daemon=True, name="selvage")
            try:
                thread.start()
            except BaseException:  # the next call tries again
                loop.close()
                raise
            self.loop, self.thread, self._process = loop, thread, os.getpid()
        return self.loop

    def end(self) -> None:
        """Ends all sessions and the loop before the interpreter stops its thread, which may hold locks of gRPC."""
        if self.runs and self.loop is not None and self.thread is not None:
            wait([end for session in list(self.sessions) if (end := session.stop()) is not None], EXIT_SECONDS)
            self.loop.call_soon_threadsafe(self._end.set)
            self.thread.join(EXIT_SECONDS)

    def renew_lock(self) -> None:
        """Makes a new lock in a forked process, where the thread that holds the old one may be missing."""
        self.lock = threading.RLock()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self._end.wait())


_thread = LoopThread()
atexit.register(_thread.end)
os.register_at_fork(after_in_child=_thread.renew_lock)


class Session:
    """The coroutines of one client or engine, and the contexts that end with it. Threads may share it.

    It does not survive a fork.
    """

    def __init__(self, owner: str) -> None:
        """`owner`: what errors call the object that the session belongs to, such as "client"."""
        self._owner = owner
        self._contexts = AsyncExitStack()
        self._futures: set[Future[Any]] = set()
        self._process = 0
        self._closed = False
        self._end: Future[None] | None = None
        _thread.sessions.add(self)

    def begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Begins a coroutine. Raises Cancelled after the end, RuntimeError in a forked process."""
        future: Future[T] | None = None
        try:
            if self._process not in (0, os.getpid()):
                article = "an" if self._owner[0] in "aeiou" else "a"
                raise RuntimeError(f"{article} {self._owner} does not survive a fork: make one in each process")
            with _thread.lock:  # what was begun is cancelled at the end: nobody waits for ever
                if self._closed:
                    raise self._closed_error()
                future = asyncio.run_coroutine_threadsafe(work, _thread.started())
                self._process = os.getpid()
                self._futures.add(future)
        except BaseException:
            if future is None:
                work.close()
            else:  # the loop may run it already
                future.cancel()
            raise
        future.add_done_callback(self._futures.discard)
        return future

    def result(self, future: "Future[T]") -> T:
        """Waits for the result of a coroutine. An exception in this thread, such as Ctrl-C, cancels it.

        Raises Cancelled where the session ended before it.
        """
        try:
            return future.result()
        except CancelledError:
            raise self._closed_error() from None
        except BaseException:
            future.cancel()
            raise
        finally:
            del future  # holds the error, whose traceback holds this frame: a cycle

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine, and returns its result. Raises as `begin` and `result` do."""
        return self.result(self.begin(work))

    def enter(self, context: AbstractAsyncContextManager[T]) -> T:
        """Enters a context, which is left when the session ends."""
        return self.run(self._contexts.enter_async_context(context))

    def call_at_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Has the session call `close` when it ends, before those that were given earlier."""
        self._contexts.push_async_callback(close)

    def stop(self) -> "Future[None] | None":
        """Ends the session without waiting: its coroutines are cancelled, its contexts left.

        Returns the future of that end; None where nothing was begun. May be called repeatedly.
        """
        with _thread.lock:
            if not self._closed and self._process == os.getpid() and _thread.loop is not None:
                self._end = asyncio.run_coroutine_threadsafe(self._leave(list(self._futures)), _thread.loop)
            self._closed = True
        return self._end

    def close(self) -> None:
        """Ends the session, and waits until it has ended, unless the loop's thread itself calls."""
        end = self.stop()
        if end is not None and _thread.runs and threading.current_thread() is not _thread.thread:
            end.result()

    async def _leave(self, futures: Sequence[Future[Any]]) -> None:
        """Cancels what was begun, and leaves the contexts."""
        for future in futures:
            future.cancel()
        await asyncio.sleep(0)  # the coroutines are cancelled by now
        await self._contexts.aclose()

    def _closed_error(self) -> Cancelled:
        return Cancelled(f"the {self._owner} was closed")

"""Reads requests: few at once, and slow ones only while there is memory. Knows no gRPC and no HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, TypeVar

from shared.errors import Overloaded, SelvageError
from shared.server.admission.bounds import Bounds
from shared.server.admission.refusals import Refusals

QUICK_READS, QUICK_SECONDS = 2, 0.01
"""Reads at once, and seconds until a read counts as slow. A small request that was sent is there at once, so a longer
read has a large request or a slow sender; with a slow sender the next read may begin."""
FIRST_LOOK, LOOK_SECONDS = 0.002, 0.01
"""Seconds until the first check of a slow read, and between later checks: 10 MB may arrive in 10 ms."""
GROWTH = 512 * 1024
"""Most bytes by which the process grows between two checks if it only waits for slow senders."""
PATIENCE_SECONDS = 0.1
"""Seconds for which a read goes on while memory is short, before it is refused as slow: another caller's large request
may take the memory, and hold up small ones meanwhile."""
LARGE_REQUEST = 8 * 1024 * 1024
"""Size in bytes from which a request is handled alone: put together, parsed, and its memory given back."""
BREATH_SECONDS = 0.001
"""Seconds after a large request before the next message is put together, in which timers run."""

T = TypeVar("T")


class Reads:
    """The reads of one process. `slow`: the number of slow reads now."""

    def __init__(
        self, bounds: Bounds, refusals: Refusals, memory: Callable[[], int], others: Callable[[], bool]
    ) -> None:
        """`memory`: the bytes that requests take; `others`: whether any request has been read already."""
        self.bounds, self.memory = bounds, memory
        self._refusals, self._others = refusals, others
        self._quick = asyncio.Semaphore(QUICK_READS)
        self._parsing = asyncio.Lock()
        self._gate = _Gate()
        self.slow = 0

    async def read(self, receive: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Reads a request with `receive`. Raises Overloaded where too much arrives slowly, DeadlineExceeded if late.

        The size of a request is unknown until it has been read, so a slow read goes on only while memory is left.
        """
        await self._place()
        slow_read = _SlowRead(self, self._quick.release)
        try:
            return await _GoesOn(self.taken(receive))
        except asyncio.CancelledError:
            if slow_read.error is None:
                raise
            slow_read.task.uncancel()
            raise slow_read.error from None
        finally:
            slow_read.ends()

    async def taken(self, receive: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Awaits `receive`, a coroutine of grpcio's, so that large messages are put together one by one.

        grpcio puts a message together when that coroutine resumes, which blocks the loop: 30 to 200 ms for 59 MiB.
        Between two large messages other callbacks run; without that, several in a row would delay the memory checks.
        """
        taken = await _Taken(receive(), self._gate)
        if isinstance(taken, bytes) and len(taken) >= LARGE_REQUEST:
            self._gate.close()
        return taken

    @asynccontextmanager
    async def parsing(self, size: int) -> AsyncIterator[None]:
        """Wraps the parsing of a message. A large one holds the interpreter's lock, so memory cannot be checked: no
        other read begins meanwhile."""
        if size < LARGE_REQUEST:
            yield
            return
        async with self._parsing:
            yield

    def check_slow(self, *, new: bool) -> None:
        """Raises Overloaded if a slow read must end: without memory only one goes on, a new one only if it is alone."""
        if new and self.slow >= self.bounds.slow_reads:
            why = f"{self.slow} requests are arriving slowly, the limit is {self.bounds.slow_reads}"
            raise self._refusals.overloaded("slow_reads", why)
        if self.lacks_memory(new=new):
            why = f"requests take {self.memory()} bytes, the limit is {self.bounds.memory}"
            raise self._refusals.overloaded("memory", why, retry_after=1.0)

    def lacks_memory(self, *, new: bool) -> bool:
        """Tells whether a slow read must end for want of memory; `new`: one that is not counted as slow yet."""
        others = self.slow + self._others() if new else self.slow - 1
        return bool(others) and self.memory() > self.bounds.memory

    def check_time(self, seconds: float) -> None:
        """Raises DeadlineExceeded if a read has taken longer than the limit."""
        if seconds > self.bounds.read_seconds:
            raise self._refusals.too_slow(self.bounds.read_seconds)

    async def _place(self) -> None:
        """Waits until another read may begin."""
        await self._quick.acquire()
        try:
            if self._parsing.locked():
                async with self._parsing:
                    pass
        except asyncio.CancelledError:
            self._quick.release()
            raise


class _Gate:
    """A gate that opens again shortly after it was closed; meanwhile timers run."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        self._open.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(BREATH_SECONDS, self._open.set)

    def __await__(self) -> Generator[Any, None, None]:
        while not self._open.is_set():
            yield from self._open.wait().__await__()


class _Taken(Generic[T]):
    """Runs a coroutine that waits for a gate each time before it resumes."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], gate: _Gate) -> None:
        self._coroutine, self._gate = coroutine, gate

    def __await__(self) -> Generator[Any, None, T]:
        steps = self._coroutine.__await__()
        try:
            waits_for = next(steps)
            while True:
                try:
                    yield waits_for
                    yield from self._gate.__await__()
                except GeneratorExit:
                    steps.close()  # and no throw: the collector of garbage may have closed the coroutine before
                    raise
                except BaseException as error:
                    waits_for = steps.throw(error)
                else:
                    waits_for = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class _GoesOn(Generic[T]):
    """Runs a coroutine that goes on, in a task of its own, where the waiting for it is cancelled.

    Only the waiting may be cancelled, never grpcio's read, which would lose what has arrived; it ends with its call.
    `asyncio.shield` would have a task for every read, which takes two more turns of the event loop. Here the coroutine
    begins in the task that waits for it and may end in another one, so it must not look at its task: `asyncio.timeout`
    in it would cancel the wrong one.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, None, T]:
        steps = self._coroutine.__await__()
        try:
            while True:
                waits_for = next(steps)
                try:
                    yield from _ended(waits_for)
                except asyncio.CancelledError:
                    asyncio.ensure_future(_finish(steps, waits_for)).add_done_callback(unheeded)
                    raise
        except StopIteration as end:
            result: T = end.value
            return result


def _ended(future: "asyncio.Future[Any] | None") -> Generator[Any, None, None]:
    """Waits until a future has ended, which cancelling the waiter does not cancel; a coroutine that yields None only
    lets others run."""
    if future is None:
        yield
    else:
        ended = asyncio.Event()
        future.add_done_callback(lambda _: ended.set())
        yield from ended.wait().__await__()


async def _finish(steps: Generator[Any, None, T], waits_for: "asyncio.Future[Any] | None") -> None:
    """Runs the rest of a coroutine, which waits for a future."""
    with suppress(StopIteration):
        while True:
            await asyncio.wait([waits_for]) if waits_for is not None else await asyncio.sleep(0)
            waits_for = next(steps)


class _SlowRead:
    """A read that may turn out to be slow. `error`: why it was cancelled here, else None."""

    def __init__(self, reads: Reads, let_next: Callable[[], None]) -> None:
        """Watches the read of the current task. `let_next` is called once, when the next read may begin."""
        self._reads, self._let_next = reads, let_next
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(QUICK_SECONDS, self._begins)
        self._slow_since: float | None = None
        self._memory = 0
        self._made_room, self._since = False, self._loop.time()
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.error: SelvageError | None = None

    def ends(self) -> None:
        self._timer.cancel()
        self._no_longer_slow()
        if not self._made_room:
            self._let_next()

    def _begins(self) -> None:
        if self._is_let_wait(new=True):
            self._timer = self._loop.call_later(LOOK_SECONDS, self._begins)
            return
        try:
            self._reads.check_slow(new=True)
        except Overloaded as error:
            self._stop(error)
            return
        self._reads.slow += 1
        self._memory = self._reads.memory()
        self._slow_since = self._loop.time()
        self._timer = self._loop.call_later(FIRST_LOOK, self._goes_on)

    def _is_let_wait(self, *, new: bool) -> bool:
        """Whether this read, which would end for want of memory, has not taken long yet."""
        return self._loop.time() - self._since < PATIENCE_SECONDS and self._reads.lacks_memory(new=new)

    def _goes_on(self) -> None:
        assert self._slow_since is not None
        if self._is_let_wait(new=False):
            self._timer = self._loop.call_later(LOOK_SECONDS, self._goes_on)
            return
        try:
            self._reads.check_slow(new=False)
            self._reads.check_time(self._loop.time() - self._slow_since)
        except SelvageError as error:
            self._stop(error)
            return
        self._timer = self._loop.call_later(LOOK_SECONDS, self._goes_on)
        self._make_room()

    def _make_room(self) -> None:
        """Lets the next read begin if the sender is slow. Large requests that arrive at full speed go one by one;
        together they would fill the memory between two checks."""
        if self._made_room:
            return
        before, self._memory = self._memory, self._reads.memory()
        if self._memory < self._reads.bounds.memory / 2 and self._memory - before < GROWTH:
            self._made_room = True
            self._let_next()

    def _no_longer_slow(self) -> None:
        self._reads.slow -= self._slow_since is not None
        self._slow_since = None

    def _stop(self, error: SelvageError) -> None:
        self.error = error
        self._no_longer_slow()  # now, so that of the reads that are checked in this moment one goes on
        self.task.cancel()


def unheeded(done: "asyncio.Future[T]") -> None:
    """Retrieves the error of an abandoned read, so that asyncio does not log it."""
    if not done.cancelled():
        done.exception()

"""How requests are read: few at once, and slow ones as long as there is memory. Knows no gRPC and no HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from shared.errors import Overloaded, SelvageError
from shared.server.admission.bounds import Bounds
from shared.server.admission.refusals import Refusals

QUICK_READS, QUICK_SECONDS = 2, 0.01
"""So many requests are read at once; what was sent is there at once. A read that takes longer is large, or its sender
is slow: then it makes room for the next."""
FIRST_LOOK, LOOK_SECONDS = 0.002, 0.01
"""Until a slow read is looked at, and between later looks; in a hundredth of a second ten megabytes may come."""
GROWTH = 512 * 1024
"""Bytes that the process may grow by from look to look while it only waits for slow senders."""
LARGE_REQUEST = 8 * 1024 * 1024
"""Bytes."""
BREATH_SECONDS = 0.001
"""After a large request, before the next message is put together."""

T = TypeVar("T")


class Reads:
    """All of one process. `slow`: how many are slow now."""

    def __init__(
        self, bounds: Bounds, refusals: Refusals, memory: Callable[[], int], others: Callable[[], bool]
    ) -> None:
        """`memory`: bytes that requests take; `others`: whether there are requests that have been read."""
        self.bounds, self.memory = bounds, memory
        self._refusals, self._others = refusals, others
        self._quick = asyncio.Semaphore(QUICK_READS)
        self._parsing = asyncio.Lock()
        self._gate = _Gate()
        self.slow = 0

    async def read(self, receive: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `receive` returns. Raises Overloaded where too much arrives slowly, DeadlineExceeded after long.

        Nobody knows how large a request is before it has been read. So a slow one goes on only while memory is left.
        """
        await self._place()
        one = _SlowRead(self, self._quick.release)
        # Ours is cancelled, the read never is: grpcio would lose what has come, 60 MiB at once. It ends with its call.
        receiving = asyncio.ensure_future(self.taken(receive))
        receiving.add_done_callback(unheeded)
        try:
            return await asyncio.shield(receiving)
        except asyncio.CancelledError:
            if one.error is None:
                raise
            one.task.uncancel()
            raise one.error from None
        finally:
            one.ends()

    async def taken(self, receive: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `receive` returns, a coroutine of grpcio's: large messages one by one, others have their turn between.

        A message that has arrived is put together where that coroutine goes on, 59 MiB in 30 to 200 ms. Several in a
        row, and those that arrive meanwhile behind them, would leave nobody time to look at the memory.
        """
        taken = await _Taken(receive(), self._gate)
        if isinstance(taken, bytes) and len(taken) >= LARGE_REQUEST:
            self._gate.close()
        return taken

    @asynccontextmanager
    async def parsing(self, size: int) -> AsyncIterator[None]:
        """While a message is parsed. A large one holds the interpreter's lock, and nobody could look at what is read
        meanwhile: so no other read begins."""
        if size < LARGE_REQUEST:
            yield
            return
        async with self._parsing:
            yield

    def check_slow(self, *, new: bool) -> None:
        """Raises Overloaded. Without memory one slow read goes on, and a new one only where no other request does."""
        if new and self.slow >= self.bounds.slow_reads:
            why = f"{self.slow} requests are arriving slowly, the limit is {self.bounds.slow_reads}"
            raise self._refusals.overloaded("slow_reads", why)
        memory, others = self.memory(), self.slow + self._others() if new else self.slow - 1
        if memory > self.bounds.memory and others:
            why = f"requests take {memory} bytes, the limit is {self.bounds.memory}"
            raise self._refusals.overloaded("memory", why, retry_after=1.0)

    def check_time(self, seconds: float) -> None:
        """Raises DeadlineExceeded where a read took so long."""
        if seconds > self.bounds.read_seconds:
            raise self._refusals.too_slow(self.bounds.read_seconds)

    async def _place(self) -> None:
        """Returns when another read may begin."""
        await self._quick.acquire()
        try:
            if self._parsing.locked():
                async with self._parsing:
                    pass
        except asyncio.CancelledError:
            self._quick.release()
            raise


class _Gate:
    """Open, but for a moment after it was closed, in which timers run."""

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
    """A coroutine that passes a gate each time before it goes on."""

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
                except BaseException as error:
                    waits_for = steps.throw(error)
                else:
                    waits_for = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class _SlowRead:
    """One that may turn out to be slow. `error`: why it was cancelled by us."""

    def __init__(self, reads: Reads, let_next: Callable[[], None]) -> None:
        """Of the task that runs. `let_next` is called once, when the next one may begin."""
        self._reads, self._let_next = reads, let_next
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(QUICK_SECONDS, self._begins)
        self._slow_since: float | None = None
        self._memory = 0
        self._made_room = False
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
        try:
            self._reads.check_slow(new=True)
        except Overloaded as error:
            self._stop(error)
            return
        self._reads.slow += 1
        self._memory = self._reads.memory()
        self._slow_since = self._loop.time()
        self._timer = self._loop.call_later(FIRST_LOOK, self._goes_on)

    def _goes_on(self) -> None:
        assert self._slow_since is not None
        try:
            self._reads.check_slow(new=False)
            self._reads.check_time(self._loop.time() - self._slow_since)
        except SelvageError as error:
            self._stop(error)
            return
        self._timer = self._loop.call_later(LOOK_SECONDS, self._goes_on)
        self._make_room()

    def _make_room(self) -> None:
        """Large requests that arrive as fast as they can come one after the other: together they would fill the memory
        before anyone looked."""
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
        self._no_longer_slow()  # at once: of others that are looked at in this moment one goes on
        self.task.cancel()


def unheeded(done: "asyncio.Future[T]") -> None:
    """Nobody asks for what a read that was given up ends with."""
    if not done.cancelled():
        done.exception()

"""The fair thread pool: several requests share threads, each in slices of a few milliseconds that take turns.

Knows neither texts nor tokens: a request is a generator that stops after each slice and returns its result.
"""

import asyncio
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from shared.errors import WorkerUnavailable

PATIENCE = 4
"""One turn in so many goes to the request that has waited longest, or a stream of new ones would starve the old."""

TURN = 0.002
"""Seconds after which a turn ends with its slice: a request of brief slices needs one turn, not many."""

T = TypeVar("T")
TimeSlices = Generator[int, None, T]
"""Work in slices: yields the number of tokens so far after each, and returns its result at the end."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Request(Generic[T]):
    """A request that has not ended. `served`: seconds that its slices took so far."""

    slices: Generator[object, None, T]
    result: "Future[T]" = field(default_factory=Future)
    served: float = 0.0

    def run_turn(self, clock: Callable[[], float]) -> bool:
        """Runs a slice, or several brief ones. Returns whether there is more to do."""
        start = now = clock()
        more = True
        while more and now - start < TURN:
            more = self._run_slice()
            now = clock()
        self.served += now - start
        return more

    def _run_slice(self) -> bool:
        """Runs a slice unless the request was cancelled. Returns whether there is more to do."""
        if self.result.cancelled():
            self.slices.close()
            return False
        try:
            next(self.slices)
        except StopIteration as end:
            self._end(partial(self.result.set_result, end.value))
        except BaseException as error:  # the thread must live on, and the caller must get any error
            self._end(partial(self.result.set_exception, error))
        else:
            return True
        return False

    def stop(self, error: Exception) -> None:
        """Ends the request with an error, without another slice."""
        self.slices.close()
        self._end(partial(self.result.set_exception, error))

    def _end(self, set_outcome: Callable[[], object]) -> None:
        if self.result.set_running_or_notify_cancel():  # from here on it cannot be cancelled: it ends only once
            set_outcome()


class FairThreadPool:
    """The fair thread pool: the next turn of its threads goes to the request that had the least time so far.

    So a new request waits only for the turns that are running, and now and then for one more.
    """

    def __init__(self, executor: Executor, clock: Callable[[], float] = time.perf_counter) -> None:
        self._executor = executor
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[int, _Request[Any]] = {}  # in the order in which they began to wait
        self._by_time: list[tuple[float, int]] = []  # a heap; numbers that are not in `_waiting` any more are skipped
        self._numbers = itertools.count()
        self._turns = 0
        self._closed = False

    async def run(self, slices: Generator[object, None, T]) -> T:
        """Runs slices in turn with other requests, and returns their result. When cancelled, ends after a slice.

        Raises what the slices raise, and WorkerUnavailable once the pool is closed.
        """
        request = _Request(slices=slices)
        with self._lock:
            if self._closed:
                raise _closed()
            self._executor.submit(self._serve_turns)  # one such call for each request that has not ended
            self._enqueue(request)
        return await asyncio.wrap_future(request.result)

    def close(self) -> None:
        """Ends all requests: those that wait at once, those that run after their turn."""
        with self._lock:
            self._closed = True
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for request in waiting:
            request.stop(_closed())

    def _serve_turns(self) -> None:
        """Runs turns of one request after another, until one of them has ended."""
        with self._lock:
            request = self._dequeue()
        while request is not None and request.run_turn(self._clock):
            request = self._next(request)

    def _next(self, request: _Request[Any]) -> _Request[Any] | None:
        """The request that is served after a turn of this one, which waits again; None once closed."""
        with self._lock:
            if not self._closed:
                self._enqueue(request)
                return self._dequeue()
        request.stop(_closed())
        return None

    def _enqueue(self, request: _Request[Any]) -> None:
        number = next(self._numbers)
        self._waiting[number] = request
        heapq.heappush(self._by_time, (request.served, number))

    def _dequeue(self) -> _Request[Any] | None:
        """The request that is served next; None where `close` has ended those that waited."""
        self._turns += 1
        if self._turns % PATIENCE == 0 and self._waiting:
            return self._waiting.pop(next(iter(self._waiting)))
        while self._by_time:
            _, number = heapq.heappop(self._by_time)
            if number in self._waiting:
                return self._waiting.pop(number)
        return None


def _closed() -> WorkerUnavailable:
    return WorkerUnavailable("the service is draining", retry_after=1.0)


def single_slice(work: Callable[[], T]) -> TimeSlices[T]:
    """Work as a single slice."""
    return work()
    yield


def run_to_end(slices: Generator[object, None, T]) -> T:
    """Runs slices in this thread, and returns their result."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: T = end.value
            return result

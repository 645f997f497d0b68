"""Who of several requests computes next in a pool of threads: slices of a few milliseconds, in turns.

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
"""Every so many turns go to the request that has waited longest, or a stream of new ones would starve the old."""

TURN = 0.002
"""Seconds after which a turn ends with its slice; so a request of brief slices needs one turn, not many."""

T = TypeVar("T")
Slices = Generator[int, None, T]
"""Work in slices: after each it tells how many tokens there are so far; at the end it returns its result."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Request(Generic[T]):
    """One request on its way. `served`: seconds that its slices took so far."""

    slices: Generator[object, None, T]
    answer: "Future[T]" = field(default_factory=Future)
    served: float = 0.0

    def turn(self, clock: Callable[[], float]) -> bool:
        """Runs a slice, or several brief ones; whether there is more to do."""
        start = now = clock()
        more = True
        while more and now - start < TURN:
            more = self._slice()
            now = clock()
        self.served += now - start
        return more

    def _slice(self) -> bool:
        """Runs a slice unless nobody waits for the answer any more; whether there is more to do."""
        if self.answer.cancelled():
            self.slices.close()
            return False
        try:
            next(self.slices)
        except StopIteration as end:
            self._end(partial(self.answer.set_result, end.value))
        except BaseException as error:  # a thread of the pool must live, and the caller must hear of anything
            self._end(partial(self.answer.set_exception, error))
        else:
            return True
        return False

    def stop(self, error: Exception) -> None:
        """Ends it without another slice."""
        self.slices.close()
        self._end(partial(self.answer.set_exception, error))

    def _end(self, answer: Callable[[], object]) -> None:
        if self.answer.set_running_or_notify_cancel():  # from here on it cannot be cancelled: one end, not two
            answer()


class FairThreads:
    """Requests that share threads: the next turn is that of the request that had the least time so far.

    So a new request waits for no more than the turns that are running, and at times for one more.
    """

    def __init__(self, threads: Executor, clock: Callable[[], float] = time.perf_counter) -> None:
        self._threads = threads
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[int, _Request[Any]] = {}  # in the order in which they began to wait
        self._by_service: list[tuple[float, int]] = []  # a heap; numbers that wait no more are skipped
        self._numbers = itertools.count()
        self._turn = 0
        self._closed = False

    async def run(self, slices: Generator[object, None, T]) -> T:
        """What `slices` returns. When cancelled, it stops after the running slice.

        Raises what it raises, and WorkerUnavailable once closed.
        """
        request = _Request(slices=slices)
        with self._lock:
            if self._closed:
                raise _closed()
            self._threads.submit(self._serve)  # as many calls of it are under way as there are unfinished requests
            self._put(request)
        return await asyncio.wrap_future(request.answer)

    def close(self) -> None:
        """Ends all requests: those that wait at once, others after their turn."""
        with self._lock:
            self._closed = True
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for request in waiting:
            request.stop(_closed())

    def _serve(self) -> None:
        """Slices of whoever's turn it is, until one request has ended."""
        with self._lock:
            request = self._take()
        while request is not None and request.turn(self._clock):
            request = self._next(request)

    def _next(self, request: _Request[Any]) -> _Request[Any] | None:
        """Whose turn it is after a slice of this one."""
        with self._lock:
            if not self._closed:
                self._put(request)
                return self._take()
        request.stop(_closed())
        return None

    def _put(self, request: _Request[Any]) -> None:
        number = next(self._numbers)
        self._waiting[number] = request
        heapq.heappush(self._by_service, (request.served, number))

    def _take(self) -> _Request[Any] | None:
        """The next one; None where `close` has ended those that waited."""
        self._turn += 1
        if self._turn % PATIENCE == 0 and self._waiting:
            return self._waiting.pop(next(iter(self._waiting)))
        while self._by_service:
            _, number = heapq.heappop(self._by_service)
            if number in self._waiting:
                return self._waiting.pop(number)
        return None


def _closed() -> WorkerUnavailable:
    return WorkerUnavailable("the service is draining", retry_after=1.0)


def once(work: Callable[[], T]) -> Slices[T]:
    """Work in a single slice."""
    return work()
    yield


def finished(slices: Generator[object, None, T]) -> T:
    """What slices return, run here and now."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: T = end.value
            return result

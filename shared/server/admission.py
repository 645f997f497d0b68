"""Admission: how many requests, streams and bytes a process accepts, over all APIs together. Knows no gRPC and no HTTP.

An API calls it in this order, so that refusals cost least: `request` before it reads anything, `reads` to read a
message whose size is not known before, `hold` once it knows the size. Health checks have places and reads of their own,
so that no other call's load refuses them.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from shared.caller import Quota
from shared.errors import DeadlineExceeded, Overloaded, SelvageError, WorkerUnavailable
from shared.tasks import unheeded

QUICK_READS, QUICK_CHECKS, QUICK_SECONDS = 4, 64, 0.02
"""Reads of requests or watches, and of health checks, at once; and seconds until a read counts as slow. A small request
that was sent is there at once, so a longer read has a large request or a slow sender, and the next read may begin."""
RETRY_AFTER = 0.5
"""Seconds until a retry, if there is no better estimate."""
SMALL_SHARE, SMALL_ALONE = 64, 4
"""A request with up to a 64th of the budget is small. Small ones have a quarter of it more for themselves, so one large
request refuses no small one."""
LIFETIME = 540.0
"""Seconds until a stream ends. Its connection would end after five to fifteen minutes anyway; see `server_options`."""
REASONS = ("requests", "bytes", "streams", "health", "slow_reads", "read_seconds")
"""Limits in `Bounds` as reasons of a refusal."""
OTHERS = ("quota", "unauthenticated", "draining")
OF_A_KEY = {"requests": "requests in progress", "streams": "open streams"}
"""What API keys have quotas of."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of what a process handles at the same time.

    `requests`: requests, from their first byte to their last; `size`: bytes of requests that have been read, of their
    results, and of replies that callers have not read, but one request is always accepted; `slow_reads`: messages over
    gRPC that take over 20 ms to arrive; `read_seconds`: seconds to send a request, and to read its reply; `streams`:
    open streams of requests; `health`: health checks in progress, and as many open streams of health and reflection.

    A message that is being read has at most 16 MiB (`REQUEST_BYTES` of `shared.server.options`), so reading takes
    at most that for each quick read, slow read and open stream. Streams may have half of `requests`.
    """

    requests: int = 2048
    size: int = 96 * 1024 * 1024
    slow_reads: int = 6
    read_seconds: float = 30.0
    streams: int = 12
    health: int = 1024


class Refusals:
    """Makes and counts the errors of refused requests. `counts`: refusals so far, by reason."""

    def __init__(self) -> None:
        self.counts = Counter(dict.fromkeys((*REASONS, *OTHERS), 0))

    def overloaded(self, reason: str, message: str, retry_after: float = RETRY_AFTER) -> Overloaded:
        """Counts a refusal; returns the error to raise."""
        self.counts[reason] += 1
        return Overloaded(message, retry_after=retry_after)

    def too_slow(self, seconds: float) -> DeadlineExceeded:
        """Counts a request that did not arrive in time; returns the error to raise."""
        self.counts["read_seconds"] += 1
        return DeadlineExceeded(f"the request did not arrive within {seconds:g} s")


class Budget:
    """The bytes that all requests of a process share, `most` at once.

    `held`: how many are held now; `of_small`: by small requests.
    """

    def __init__(self, most: int, refusals: Refusals) -> None:
        self.most, self.held, self.of_small, self._refusals = most, 0, 0, refusals
        self._small = most // SMALL_SHARE

    def change(self, before: int, after: int) -> None:
        """Counts that a request holds `after` bytes instead of `before`, even if there is no room."""
        self.held += after - before
        if before <= self._small:
            self.of_small -= before
        if after <= self._small:
            self.of_small += after

    def check(self, size: int, of_request: int) -> None:
        """Raises Overloaded if there is no room for `size` more bytes of a request, which holds `of_request` already.

        A request that holds all that is held is always accepted, and so is what needs no more than was reserved for it:
        streams may hold more than the budget has, since they count replies that they cannot refuse.
        """
        of_others = self.held - of_request
        if size <= 0 or of_others <= 0 or self.held + size <= self.most:
            return
        if of_request + size <= self._small and self.of_small + size <= self.most // SMALL_ALONE:
            return
        why = f"the request needs {of_request + size} bytes, others hold {of_others}, the limit is {self.most}"
        raise self._refusals.overloaded("bytes", why)


class Holding:
    """The bytes of a budget that a message, a result or a whole request holds; they may grow and shrink.

    As a context it lets all of them go at its end. `held`: their number now.
    """

    def __init__(self, budget: Budget, request: "Request | None" = None) -> None:
        """`request`: of whose bytes these are a part; None: these are no part of others. Then requests that begin in
        its block do not count them as held by others."""
        self._budget, self._request = budget, request
        self._token: Token[tuple[Holding, ...]] | None = None
        self.held = 0

    def __enter__(self) -> "Holding":
        if self._request is None:
            self._token = _BESIDE.set((*_BESIDE.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _BESIDE.reset(self._token)
        self.force(-self.held)

    def add(self, size: int) -> None:
        """Adds `size` bytes. Raises Overloaded if the budget has no room for them."""
        self._budget.check(size, self.held if self._request is None else self._request.whole)
        self.force(size)

    def force(self, size: int) -> None:
        """Adds `size` bytes, even if the budget has no room."""
        self.held += size
        if self._request is None:
            self._budget.change(self.held - size, self.held)
        else:
            self._request.force(size)

    def let_go(self, size: int) -> None:
        """Removes `size` bytes."""
        self.force(-size)


class Request:
    """A request in progress, and all bytes that it holds. It is admitted for the duration of its block.

    `held`: their number; `message`: the size of its message; `results`: bytes reserved for its results.
    """

    def __init__(self, admission: "Admission", quota: Quota | None) -> None:
        self._admission, self._quota, self._budget = admission, quota, admission.budget
        self._beside = _BESIDE.get()
        self.held = self.message = self.results = 0

    def __enter__(self) -> None:
        """Takes a place. Raises Overloaded where there is none."""
        self._admission.begin("requests", self._quota)
        _REQUEST.set(self)

    def __exit__(self, *_: object) -> None:
        _REQUEST.set(None)
        self.force(-self.results)
        self._admission.end("requests", self._quota)

    @property
    def whole(self) -> int:
        """The bytes that no other request holds: also those that its stream holds for it."""
        return self.held + sum([holding.held for holding in self._beside])

    def reserve(self, size: int) -> None:
        """Reserves `size` bytes for results. Raises Overloaded."""
        self._budget.check(size, self.whole)
        self.force(size)
        self.results += size

    def force(self, size: int) -> None:
        """Adds `size` bytes, even if the budget has no room."""
        self.held += size
        self._budget.change(self.held - size, self.held)


_BESIDE: ContextVar[tuple[Holding, ...]] = ContextVar("beside", default=())
"""What the stream of this task's requests holds for them."""
_REQUEST: ContextVar[Request | None] = ContextVar("request", default=None)


class Reads:
    """Reads messages whose size is unknown until they are there. `slow`: the number of slow reads now."""

    def __init__(self, bounds: Bounds, refusals: Refusals, quick: int) -> None:
        """`quick`: reads at once that are not slow."""
        self._bounds, self._refusals = bounds, refusals
        self._quick = asyncio.Semaphore(quick)
        self.slow = 0

    async def read(self, receive: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Reads a message with `receive`. Raises Overloaded where too many arrive slowly, DeadlineExceeded if late.

        `receive` is never cancelled: grpcio would not free what has arrived. It ends with its call.
        """
        await self._quick.acquire()
        reading = asyncio.create_task(receive())
        try:
            try:
                await asyncio.wait([reading], timeout=QUICK_SECONDS)
                if not reading.done():
                    self._begin_slow(reading)
            finally:
                self._quick.release()
            if not reading.done():
                await asyncio.wait([reading], timeout=self._bounds.read_seconds)
            if not reading.done():
                raise self._refusals.too_slow(self._bounds.read_seconds)
        except BaseException:
            reading.add_done_callback(unheeded)
            raise
        return reading.result()

    def _begin_slow(self, reading: "asyncio.Future[Any]") -> None:
        """Counts a read as slow until it is done. Raises Overloaded where there are too many."""
        if self.slow >= self._bounds.slow_reads:
            why = f"{self.slow} requests are arriving slowly, the limit is {self._bounds.slow_reads}"
            raise self._refusals.overloaded("slow_reads", why)
        self.slow += 1
        reading.add_done_callback(self._end_slow)

    def _end_slow(self, _: object) -> None:
        self.slow -= 1


class OpenStream:
    """A stream of requests, owned by the task that made it. `results`: where its waiting replies are counted."""

    def __init__(self, results: Holding) -> None:
        self.results = results
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._ending: asyncio.Future[SelvageError] = asyncio.get_running_loop().create_future()
        self._broken: SelvageError | None = None

    @property
    def ending(self) -> bool:
        """Whether the stream begins no further requests."""
        return self._ending.done()

    def end(self, error: SelvageError) -> None:
        """Begins no further requests; those in progress are answered, then the stream ends with `error`."""
        if not self._ending.done():
            self._ending.set_result(error)

    def break_off(self, error: SelvageError) -> None:
        """Ends the stream with `error` at once."""
        if self._broken is None:
            self._broken = error
            self._task.cancel()

    async def until_ended(self) -> None:
        """Waits until the stream is to end; raises why."""
        await asyncio.wait({self._ending})
        raise self._ending.result()

    async def ended(self, reading: "asyncio.Future[None]") -> SelvageError | None:
        """Waits until `reading` is done, or the stream is to end; returns the error of the latter. Cancels neither."""
        either: set[asyncio.Future[Any]] = {reading, self._ending}
        done, _ = await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._ending in done:
            return self._ending.result()
        reading.result()  # a bug
        return None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Wraps all work of the stream's task. Raises the error of `break_off`."""
        try:
            yield
        except asyncio.CancelledError:
            if self._broken is None:
                raise
            self._task.uncancel()
            raise self._broken from None
        finally:
            self._ending.cancel()


class Admission:
    """Refuses requests with Overloaded before they cost work. `budget`: the bytes that they hold."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.refusals = Refusals()
        self.budget = Budget(bounds.size, self.refusals)
        self.reads = Reads(bounds, self.refusals, QUICK_READS)
        self.checks = Reads(bounds, self.refusals, QUICK_CHECKS)
        self.watches = Reads(bounds, self.refusals, QUICK_READS)
        self.stream_requests = asyncio.Semaphore(max(1, bounds.requests // 2))
        self._places = {
            "requests": Quota(bounds.requests),
            "streams": Quota(bounds.streams),
            "watches": Quota(bounds.health),
            "checks": Quota(bounds.health),
        }
        self._open: set[OpenStream] = set()
        self._ended: SelvageError | None = None

    @property
    def requests(self) -> int:
        """The number of requests in progress."""
        return self._places["requests"].running

    @property
    def streams(self) -> int:
        """The number of open streams, those of health and reflection included."""
        return len(self._open)

    @property
    def size(self) -> int:
        """Bytes of all requests, results and unread replies."""
        return self.budget.held

    @property
    def reserved(self) -> int:
        """Bytes of results that this request has reserved."""
        request = _REQUEST.get()
        assert request is not None, "only a request asks"
        return request.results

    @property
    def message_size(self) -> int:
        """Bytes of the message of this request, 0 where none was held. The message itself would serialise itself to
        tell, which takes 90 ms for 60 MB."""
        request = _REQUEST.get()
        return 0 if request is None else request.message

    @property
    def refused(self) -> Counter[str]:
        """Refused requests so far, by reason."""
        return self.refusals.counts

    def request(self, quota: Quota | None = None) -> Request:
        """A request, which is admitted for the duration of a block. `quota`: that of its API key. Raises Overloaded."""
        return Request(self, quota)

    @contextmanager
    def stream(self, quota: Quota | None = None, *, watch: bool = False) -> Iterator[OpenStream]:
        """Admits a stream, whose requests each enter `request` on their own. `quota`: that of its API key. Raises
        Overloaded.

        `watch`: it is of gRPC's own services, whose streams have places of their own: clients that watch a service's
        health keep one open for each connection.
        """
        kind = "watches" if watch else "streams"
        stream = OpenStream(Holding(self.budget))
        self.begin(kind, quota)
        too_old = WorkerUnavailable(f"the stream is {LIFETIME:g} s old; go on in another one", retry_after=0.0)
        timer = asyncio.get_running_loop().call_later(LIFETIME, stream.end, too_old)
        self._open.add(stream)
        if self._ended is not None:
            stream.end(self._ended)
        try:
            with stream.running():
                yield stream
        finally:
            timer.cancel()
            self._open.discard(stream)
            self.end(kind, quota)

    def end_streams(self, error: SelvageError) -> None:
        """Ends all streams once their requests are answered, and later ones too."""
        self._ended = error
        for stream in self._open:
            stream.end(error)

    @contextmanager
    def check(self) -> Iterator[None]:
        """Admits a health check, beside all other calls. Raises Overloaded."""
        self.begin("checks")
        try:
            yield
        finally:
            self.end("checks")

    def reserve(self, size: int) -> None:
        """Reserves `size` bytes for a result, until its request is answered. Raises Overloaded."""
        request = _REQUEST.get()
        assert request is not None, "only a request has results"
        request.reserve(size)

    def hold(self, size: int) -> Holding:
        """Holds the `size` bytes of a message for the duration of a block. Raises Overloaded."""
        holding = self.holding()
        holding.add(size)
        self.note_message(size)
        return holding

    def note_message(self, size: int) -> None:
        """Notes the size of this request's message, which is held already."""
        if (request := _REQUEST.get()) is not None:
            request.message = size

    def holding(self) -> Holding:
        """Holds a message that comes in parts, or messages that come and go, for the duration of a block.

        Requests that begin in the block do not count it as held by others.
        """
        return Holding(self.budget, _REQUEST.get())

    @contextmanager
    def beside(self, holding: Holding) -> Iterator[None]:
        """Requests that begin in the block do not count `holding` as held by others."""
        token = _BESIDE.set((*_BESIDE.get(), holding))
        try:
            yield
        finally:
            _BESIDE.reset(token)

    def hold_reply(self, size: int) -> Callable[[], None]:
        """Counts a reply as unread until the API calls the returned function. Raises Overloaded.

        It takes the place of the results that its request has reserved.
        """
        request = _REQUEST.get()
        if request is None:
            self.budget.check(size, 0)
        else:
            self.budget.check(size - request.results, request.whole)
            request.force(-request.results)
            request.results = 0
        reply = Holding(self.budget)
        reply.force(size)
        return partial(reply.let_go, size)

    def begin(self, kind: str, quota: Quota | None = None) -> None:
        """Takes a place for one of a `kind`: requests, streams, watches or checks; and one of the `quota` of an API
        key. Raises Overloaded where there is none."""
        if quota is not None and quota.running >= quota.most:
            why = f"this API key has {quota.running} {OF_A_KEY[kind]}, the limit is {quota.most}"
            raise self.refusals.overloaded("quota", why)
        places = self._places[kind]
        if places.running >= places.most:
            reason = kind if kind in REASONS else "health"
            raise self.refusals.overloaded(reason, f"{places.running} {kind} are open, the limit is {places.most}")
        places.running += 1
        if quota is not None:
            quota.running += 1

    def end(self, kind: str, quota: Quota | None = None) -> None:
        """Gives back what `begin` took."""
        self._places[kind].running -= 1
        if quota is not None:
            quota.running -= 1

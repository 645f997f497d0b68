"""What holds for every call, whatever door it came through: time, ids, errors, one line in the log, draining.

Knows no gRPC, no HTTP and no messages. A door adds two things: how its bytes are read and written, and how its protocol
tells a SelvageError.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import structlog

from shared import request_id
from shared import traceparent as trace
from shared.caller import Caller
from shared.deadline import Deadline
from shared.errors import DeadlineExceeded, Internal, SelvageError, Unauthenticated, WorkerUnavailable
from shared.jobs import Priority
from shared.server.admission import Admission, Bounds
from shared.server.admission.streams import OpenStream
from shared.terms import RequestTerms

SLACK = 1.0
"""Seconds by which a call may outlast its caller's own deadline, so that the transport or the worker tells it first."""
CANCELLED = "CANCELLED"
BOUNDS = Bounds()

T = TypeVar("T")
log = structlog.get_logger("calls")


class CallSpan(Protocol):
    """A call as a trace shows it. `traceparent`: what is asked of others on its behalf comes below it."""

    traceparent: str

    def end(self, code: str, reason: str) -> None: ...


class Calls:
    """All calls of one process."""

    def __init__(
        self,
        *,
        timeout: float | None,
        bounds: Bounds = BOUNDS,
        check: Callable[[Caller], None] | None = None,
        identify: Callable[[Caller], Caller] | None = None,
        log_calls: bool = False,
        begin_span: Callable[[Caller], CallSpan] | None = None,
    ) -> None:
        """`timeout`: seconds for a call that brings no deadline; None: calls take as long as they take.

        `check` may refuse a call by what is known before it is read. `identify` gives the caller with what belongs to
        its secret, or raises Unauthenticated; None: everybody may ask. `log_calls`: a line in the log for each;
        `begin_span`: a span in a trace for each.
        """
        self._timeout, self._log_calls, self._begin_span = timeout, log_calls, begin_span
        self.admission = Admission(bounds)
        self.check = check
        self._identify = identify
        self._refuses = False
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Returns when no call runs."""
        await self._idle.wait()

    def refuse(self) -> None:
        """From now on every new call gets WorkerUnavailable; those that run go on."""
        self._refuses = True

    def end_streams(self) -> None:
        """No stream's request is begun any more, for good; those that were are answered."""
        self.admission.streams.end(_draining())

    def identified(self, caller: Caller) -> Caller:
        """Who asks, by its secret; a door asks this before anything else. Raises Unauthenticated."""
        if self._identify is None:
            return caller
        try:
            return self._identify(caller)
        except Unauthenticated:
            self.admission.refused["unauthenticated"] += 1
            raise

    def terms(self, caller: Caller) -> RequestTerms:
        """On what terms a call is served; whoever did not say how long it waits gets the default."""
        seconds = self._timeout if caller.remaining is None else caller.remaining
        assert seconds is not None, "only a process with a default timeout asks"
        deadline = Deadline.after(seconds)
        return RequestTerms(
            deadline=deadline,
            key=caller.key,
            priority=caller.priority or Priority.DEFAULT,
            request_id=caller.request_id,
            traceparent=trace.CURRENT.get(),
        )

    async def answer(self, caller: Caller, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` returns. Raises nothing but SelvageError, and CancelledError where the caller has gone."""
        with self.running(caller):
            async with self.timeout(caller):
                return await work()

    def timeout(self, caller: Caller) -> asyncio.Timeout:
        """Around what may take no longer than a call; `running` tells that it did."""
        return asyncio.timeout(self._bound(caller.remaining))

    @contextmanager
    def stream(self, caller: Caller) -> Iterator[OpenStream]:
        """Around a stream of calls, each of which is answered as one of its own.

        It is no call: it has no bound on its time. `end_streams` ends it, so a drain waits for what it has read.
        Raises WorkerUnavailable while refusing, Overloaded where too many are open; a bug inside becomes Internal.
        """
        request_id.bind(caller.request_id, trace.trace_id(caller.traceparent))
        try:
            with self._counted():
                self._check_refuses()
                with self.admission.stream() as stream:
                    yield stream
        except SelvageError:
            raise
        except Exception as raised:
            raise _wrapped(raised, caller) from None

    @contextmanager
    def running(self, caller: Caller) -> Iterator[None]:
        """The same for what is no single answer: without a bound on its time.

        Raises WorkerUnavailable while refusing, Overloaded where there is too much; a bug inside becomes Internal, its
        trace stays in the log.
        """
        start, outcome = time.monotonic(), {"code": CANCELLED}
        span = self._begin_span(caller) if self._begin_span is not None else None
        traceparent = caller.traceparent if span is None else span.traceparent
        trace.CURRENT.set(traceparent)
        request_id.bind(caller.request_id, trace.trace_id(traceparent))
        try:
            with self._counted():
                self._check_refuses()
                if self.check is not None:
                    self.check(caller)
                with self._quota(caller), self.admission.request():
                    yield
            outcome = {"code": "OK"}
        except SelvageError as error:
            outcome = _told(error)
            raise
        except Exception as raised:
            wrapped = _wrapped(raised, caller)
            outcome = _told(wrapped)
            raise wrapped from None
        finally:
            if span is not None:
                span.end(outcome["code"], outcome.get("reason", ""))
            if self._log_calls:
                milliseconds = round((time.monotonic() - start) * 1e3, 2)
                log.info("call", method=caller.method, **outcome, milliseconds=milliseconds)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Until then, the process is not idle."""
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    @contextmanager
    def _quota(self, caller: Caller) -> Iterator[None]:
        """Counts a request of those to whom the caller belongs, if there is a limit for them. Raises Overloaded."""
        quota = caller.quota
        if quota is None:
            yield
            return
        if quota.running >= quota.most:
            why = f"{quota.running} requests with this API key are being answered, the limit is {quota.most}"
            raise self.admission.refusals.overloaded("quota", why)
        quota.running += 1
        try:
            yield
        finally:
            quota.running -= 1

    def _check_refuses(self) -> None:
        if self._refuses:
            self.admission.refused["draining"] += 1
            raise _draining()

    def _bound(self, remaining: float | None) -> float | None:
        """Seconds after which a call is ended, whatever it does."""
        if self._timeout is None or remaining is None:
            return self._timeout
        return remaining + SLACK


def _draining() -> WorkerUnavailable:
    return WorkerUnavailable("the service is draining", retry_after=1.0)


def _wrapped(raised: Exception, caller: Caller) -> SelvageError:
    """What the caller is told; a bug keeps its trace in the log and out of the message."""
    if not isinstance(raised, TimeoutError):
        log.error("bug", method=caller.method, exc_info=raised)
        return Internal("an internal error; the log of the service has it under this request id")
    if caller.remaining is None:
        return DeadlineExceeded("the call brought no deadline and outlasted the default one")
    return DeadlineExceeded("the call outlasted its deadline")


def _told(error: SelvageError) -> dict[str, str]:
    return {"code": error.status, "reason": error.reason}

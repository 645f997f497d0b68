"""Rules for every call of every API: time limit, ids, errors, a line in the log at level debug, draining.

Knows no gRPC, no HTTP and no messages. An API adds two things: how it reads and writes bytes, and how its protocol
reports a SelvageError.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import inf
from typing import Protocol, TypeVar

import structlog

from shared import reporting
from shared.caller import AUTHORIZATION, TERMS, Caller, Deadline, RequestTerms, bind_ids, trace_id_of
from shared.errors import DeadlineExceeded, Internal, SelvageError, Unauthenticated, WorkerUnavailable
from shared.jobs import Priority
from shared.server.admission import Admission, Bounds, OpenStream

SLACK = 1.0
"""Seconds by which a call may outlast its caller's own deadline, so that transport or worker reports it first."""
ACCEPT_SECONDS = 1.0
"""Seconds between two checks whether the caller of an open stream is still accepted."""
CANCELLED = "CANCELLED"
BOUNDS = Bounds()

T = TypeVar("T")
log = structlog.get_logger("calls")


class CallSpan(Protocol):
    """The span of a call in a trace. `traceparent`: the parent of spans for its jobs."""

    traceparent: str

    def end(self, code: str, reason: str) -> None: ...


class Calls:
    """All calls of one process.

    `check` lets methods pass that need no worker: those of the services that `local_services` names, as
    `/selvage.v1.ModelService/`, and those that `local_methods` names, as `POST /tokenize`.
    """

    def __init__(
        self,
        *,
        timeout: float | None,
        bounds: Bounds = BOUNDS,
        check: Callable[[RequestTerms], None] | None = None,
        identify: Callable[[Caller], Caller] | None = None,
        accepts: Callable[[Caller], bool] | None = None,
        begin_span: Callable[[Caller], CallSpan] | None = None,
    ) -> None:
        """`timeout`: seconds for a call without a deadline; None: calls have no time limit.

        `check` may refuse a call by its terms, before its request is read. `identify` returns the caller that a secret
        belongs to, or raises Unauthenticated; None: everybody may call. `accepts`: tells whether a caller that was
        identified still is one; its streams end where not. `begin_span`: begins a span in a trace for each call.
        """
        self._timeout, self._begin_span = timeout, begin_span
        self.admission = Admission(bounds)
        self.check, self.local_services, self.local_methods = check, tuple[str, ...](), frozenset[str]()
        self._identify, self._accepts = identify, accepts
        self._refuses = False
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Waits until no call runs."""
        await self._idle.wait()

    def refuse(self) -> None:
        """Refuses every new call with WorkerUnavailable; running calls go on."""
        self._refuses = True

    def end_streams(self) -> None:
        """Ends all streams for good: requests in progress are answered, no further ones are begun."""
        self.admission.end_streams(_draining())

    def identified(self, caller: Caller) -> Caller:
        """Identifies the caller by its secret; an API calls this first. Raises Unauthenticated."""
        if self._identify is None:
            return caller
        try:
            return self._identify(caller)
        except Unauthenticated:
            self.admission.refused["unauthenticated"] += 1
            raise

    def _terms(self, caller: Caller, traceparent: str) -> RequestTerms:
        """The terms on which a call is served; a call without a deadline gets the default timeout."""
        seconds = self._timeout if caller.remaining is None else caller.remaining
        return RequestTerms(
            deadline=Deadline.after(inf if seconds is None else seconds),
            key=caller.key,
            priority=caller.priority or Priority.DEFAULT,
            request_id=caller.request_id,
            traceparent=traceparent,
        )

    async def answer(self, caller: Caller, work: Callable[[], Awaitable[T]]) -> T:
        """Runs `work` as one call. Raises only SelvageError, and CancelledError if the caller has gone."""
        seconds = self._timeout
        if seconds is not None and caller.remaining is not None:
            seconds = caller.remaining + SLACK
        with self.running(caller):
            async with asyncio.timeout(seconds):
                return await work()

    async def answer_in_stream(self, caller: Caller, deadline: Deadline | None, work: Callable[[], Awaitable[T]]) -> T:
        """Runs `work` as one of many calls of a stream, in the time that is left to all of them until `deadline`.

        Raises as `answer`. It ends before the last reply is read: reading may take long.
        """
        async with self.admission.stream_requests:
            if deadline is not None:
                caller = replace(caller, remaining=deadline.remaining())
            return await self.answer(caller, work)

    @contextmanager
    def stream(self, caller: Caller, *, watch: bool = False) -> Iterator[OpenStream]:
        """Runs a stream, whose requests are each answered as a call of its own.

        A stream itself has no time limit. `end_streams` ends it, so a drain waits for the requests that it has read.
        Raises WorkerUnavailable while refusing, Overloaded where too many are open, Unauthenticated once its caller is
        no longer accepted; a bug inside becomes Internal.
        """
        bind_ids(caller.request_id, trace_id_of(caller.traceparent))
        self._begin()
        try:
            self._check_refuses()
            with (
                self.admission.stream(caller.stream_quota, watch=watch) as stream,
                nullcontext() if watch else self._while_accepted(caller, stream),
            ):
                yield stream
        except SelvageError:
            raise
        except Exception as raised:
            raise _wrapped(raised, caller) from None
        finally:
            self._end()

    @contextmanager
    def running(self, caller: Caller) -> Iterator[None]:
        """Runs a call for the duration of the block, without a time limit, and sets its TERMS.

        Raises WorkerUnavailable while refusing, Overloaded at a limit of admission; a bug inside becomes Internal, with
        its traceback in the log.
        """
        start, outcome = time.monotonic(), {"code": CANCELLED}
        span = self._begin_span(caller) if self._begin_span is not None else None
        traceparent = caller.traceparent if span is None else span.traceparent
        terms = self._terms(caller, traceparent)
        TERMS.set(terms)
        bind_ids(caller.request_id, trace_id_of(traceparent))
        self._begin()
        try:
            self._check_refuses()
            method = caller.method
            needs_worker = method not in self.local_methods and not method.startswith(self.local_services)
            if self.check is not None and needs_worker:
                self.check(terms)
            with self.admission.request(caller.quota):
                yield
            outcome = {"code": "OK"}
        except SelvageError as error:
            outcome = _log_fields(error)
            raise
        except Exception as raised:
            wrapped = _wrapped(raised, caller)
            outcome = _log_fields(wrapped)
            raise wrapped from None
        finally:
            self._end()
            if span is not None:
                span.end(outcome["code"], outcome.get("reason", ""))
            if reporting.tells_debug():
                milliseconds = round((time.monotonic() - start) * 1e3, 2)
                log.debug("call", method=caller.method, **outcome, milliseconds=milliseconds)

    def _begin(self) -> None:
        """Counts a call or stream as running, until `_end`."""
        self._running += 1
        self._idle.clear()

    def _end(self) -> None:
        self._running -= 1
        if not self._running:
            self._idle.set()

    @contextmanager
    def _while_accepted(self, caller: Caller, stream: OpenStream) -> Iterator[None]:
        """Breaks a stream off once its caller is no longer accepted, for the duration of the block."""
        if self._accepts is None:
            yield
            return
        checking = asyncio.create_task(self._break_off_once_refused(caller, stream, self._accepts))
        try:
            yield
        finally:
            checking.cancel()

    async def _break_off_once_refused(
        self, caller: Caller, stream: OpenStream, accepts: Callable[[Caller], bool]
    ) -> None:
        while accepts(caller):  # noqa: ASYNC110 - what another process writes into a file
            await asyncio.sleep(ACCEPT_SECONDS)
        self.admission.refused["unauthenticated"] += 1
        stream.break_off(Unauthenticated("the API key is no longer known", field=AUTHORIZATION))

    def _check_refuses(self) -> None:
        if self._refuses:
            self.admission.refused["draining"] += 1
            raise _draining()


def _draining() -> WorkerUnavailable:
    return WorkerUnavailable("the service is draining", retry_after=1.0)


def _wrapped(raised: Exception, caller: Caller) -> SelvageError:
    """The error for the caller; a bug's traceback goes to the log only."""
    if not isinstance(raised, TimeoutError):
        log.error("bug", method=caller.method, exc_info=raised)
        return Internal("an internal error; the log of the service has it under this request id")
    if caller.remaining is None:
        return DeadlineExceeded("the call brought no deadline and outlasted the default one")
    return DeadlineExceeded("the call outlasted its deadline")


def _log_fields(error: SelvageError) -> dict[str, str]:
    return {"code": error.status, "reason": error.reason}

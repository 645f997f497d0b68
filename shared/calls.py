"""What holds for every call, whatever door it came through: time, ids, errors, one line in the log, draining.

Knows no gRPC, no HTTP and no messages. A door adds two things: how its bytes are read and written, and how its protocol
tells a SelvageError.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import structlog

from shared import request_id
from shared.deadline import Deadline
from shared.errors import DeadlineExceeded, Internal, SelvageError, WorkerUnavailable

SLACK = 1.0
"""Seconds by which a call may outlast its caller's own deadline, so that the transport or the worker tells it first."""
CANCELLED = "CANCELLED"

T = TypeVar("T")
log = structlog.get_logger("calls")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What a door knows of a call before it reads it.

    `method` is what the log calls it; `remaining`: seconds that the caller waits, None where it did not say.
    """

    method: str
    request_id: str
    remaining: float | None = None


class Calls:
    """All calls of one process."""

    def __init__(self, *, timeout: float | None) -> None:
        """`timeout`: seconds for a call that brings no deadline; None: calls take as long as they take."""
        self._timeout = timeout
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

    def deadline(self, remaining: float | None) -> Deadline:
        """Until when a caller waits that has `remaining` seconds left, or did not say."""
        seconds = self._timeout if remaining is None else remaining
        assert seconds is not None, "only a process with a default timeout asks"
        return Deadline.after(seconds)

    async def answer(self, caller: Caller, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` returns. Raises nothing but SelvageError, and CancelledError where the caller has gone."""
        with self.running(caller):
            async with asyncio.timeout(self._bound(caller.remaining)):
                return await work()

    @contextmanager
    def running(self, caller: Caller) -> Iterator[None]:
        """The same for what is no single answer: without a bound on its time.

        Raises WorkerUnavailable while refusing; a bug inside becomes Internal, its trace stays in the log.
        """
        start, outcome = time.monotonic(), {"code": CANCELLED}
        request_id.bind(caller.request_id)
        self._running += 1
        self._idle.clear()
        try:
            if self._refuses:
                raise WorkerUnavailable("the service is draining", retry_after=1.0)
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
            milliseconds = round((time.monotonic() - start) * 1e3, 2)
            log.info("call", method=caller.method, **outcome, milliseconds=milliseconds)
            self._running -= 1
            if not self._running:
                self._idle.set()

    def _bound(self, remaining: float | None) -> float | None:
        """Seconds after which a call is ended, whatever it does."""
        if self._timeout is None or remaining is None:
            return self._timeout
        return remaining + SLACK


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

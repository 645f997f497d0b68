"""Streams of requests that are open. Knows no gRPC and no messages."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shared.errors import SelvageError, WorkerUnavailable
from shared.server.admission.pool import BytePool

LIFETIME = 540.0
"""Seconds. Connections end five to fifteen minutes after they began, whatever goes on there; see `server_options`."""
LOOK_SECONDS = 0.01


class OpenStream:
    """One of them, of the task that made it. `results`: what it may hold of them, replies that wait included."""

    def __init__(self, results: BytePool) -> None:
        self.results = results
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._ending: asyncio.Future[SelvageError] = asyncio.get_running_loop().create_future()
        self._broken: SelvageError | None = None

    @property
    def ending(self) -> bool:
        """Whether no request is to be begun any more."""
        return self._ending.done()

    def end(self, error: SelvageError) -> None:
        """No request is begun any more; those that were are answered, and then it ends with this error."""
        if not self._ending.done():
            self._ending.set_result(error)

    def break_off(self, error: SelvageError) -> None:
        """At once."""
        if self._broken is None:
            self._broken = error
            self._task.cancel()

    async def ended(self, reading: "asyncio.Future[None]") -> SelvageError | None:
        """Once `reading` is done, or earlier the error with which the stream is to end. Neither is cancelled."""
        either: set[asyncio.Future[Any]] = {reading, self._ending}
        done, _ = await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._ending in done:
            return self._ending.result()
        reading.result()  # a bug
        return None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around all that its task does. Raises the error that broke it off."""
        try:
            yield
        except asyncio.CancelledError:
            if self._broken is None:
                raise
            self._task.uncancel()
            raise self._broken from None
        finally:
            self._ending.cancel()


class Streams:
    """All of one process.

    A stream waits for its next request for as long as its caller likes, and nobody knows how large that one will be. So
    where memory runs out, those that wait are broken off, all but the one that has waited longest.
    """

    def __init__(self, out_of_memory: Callable[[], SelvageError | None]) -> None:
        """`out_of_memory`: an error for those that are broken off, if there is too little."""
        self._out_of_memory = out_of_memory
        self._open: set[OpenStream] = set()
        self._reading: dict[OpenStream, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._ended: SelvageError | None = None

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def opened(self, results: BytePool) -> Iterator[OpenStream]:
        """Around a stream; one that is opened after `end` ends at once."""
        stream = OpenStream(results)
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
            self._reading.pop(stream, None)

    @contextmanager
    def reading(self, stream: OpenStream) -> Iterator[None]:
        """While a stream waits for its next request, and while that one arrives."""
        self._reading[stream] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        try:
            yield
        finally:
            self._reading.pop(stream, None)

    def end(self, error: SelvageError) -> None:
        """All of them, once what was read is answered, for good."""
        self._ended = error
        for stream in self._open:
            stream.end(error)

    def _look(self) -> None:
        self._timer = None
        if not self._reading:
            return
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        _, *others = self._reading
        for stream in others:
            error = self._out_of_memory()
            if error is None:
                return
            stream.break_off(error)
            del self._reading[stream]

"""Open streams of requests. Knows no gRPC and no messages."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shared.errors import SelvageError, WorkerUnavailable
from shared.server.admission.pool import BytePool

LIFETIME = 540.0
"""Seconds until a stream ends. Its connection would end after five to fifteen minutes anyway; see `server_options`."""
LOOK_SECONDS = 0.01
"""Seconds between two checks of memory while streams wait for requests."""


class OpenStream:
    """A stream of requests, owned by the task that made it. `results`: its pool of results and waiting replies."""

    def __init__(self, results: BytePool) -> None:
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


class Streams:
    """The open streams of a process.

    A stream may wait for its next request without limit, and the size of that request is unknown. So when memory runs
    out, the waiting streams are broken off, all but the one that has waited longest.
    """

    def __init__(self, out_of_memory: Callable[[], SelvageError | None]) -> None:
        """`out_of_memory`: returns the error for streams that are broken off, or None while there is enough memory."""
        self._out_of_memory = out_of_memory
        self._open: set[OpenStream] = set()
        self._reading: dict[OpenStream, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._ended: SelvageError | None = None

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def opened(self, results: BytePool) -> Iterator[OpenStream]:
        """Opens a stream for the duration of the block; after `end` it ends at once."""
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
        """Marks a stream as waiting for its next request, or receiving it, for the duration of the block."""
        self._reading[stream] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        try:
            yield
        finally:
            self._reading.pop(stream, None)

    def end(self, error: SelvageError) -> None:
        """Ends all streams once their requests are answered, and later ones too."""
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

"""A bidirectional stream to a handler in this process: the part of a `grpc.Channel` stream that clients use."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

from google.protobuf.message import Message

from embedded.pair import Over, Pair
from embedded.refused import CallStatus, Refused, cancelled, refusing
from shared.caller import Caller
from shared.server.interceptor import CALLER

AHEAD = 2
"""Most messages in each direction that wait for their reader."""


class LocalStream(CallStatus):
    """A stream call: an iterator of replies, which ends or raises Refused. A thread reads its requests."""

    def __init__(
        self, pair: Pair, caller: Caller, requests: Iterator[Message], parse: Callable[[bytes], Message]
    ) -> None:
        """`caller`: with the path of the method."""
        self._pair, self._caller, self._parse = pair, caller, parse
        self._up = RequestQueue()
        self._down: asyncio.Queue[bytes | Refused | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(AHEAD)
        self._outcome: Refused | None = None
        self._read = False
        self._call: Future[None] = Future()
        try:
            self._call = pair.run(self._answer())
        except Over as over:
            self._outcome = cancelled(str(over))
        threading.Thread(target=self._send, args=(requests,), daemon=True, name="selvage-requests").start()

    def __iter__(self) -> "LocalStream":
        return self

    def __next__(self) -> Message:
        if self._read:
            raise StopIteration
        try:
            reply = self._pair.run(self._next()).result()
        except (Over, CancelledError):
            reply = self.refused
        if isinstance(reply, bytes):
            return self._parse(reply)
        self._read = True
        if reply is None:
            raise StopIteration
        raise reply

    def cancel(self) -> None:
        """Ends the call; its reader gets CANCELLED."""
        self._call.cancel()

    @property
    def refused(self) -> Refused:
        """The error of a failed call; a call whose pair ended first counts as cancelled."""
        return self._outcome or cancelled()

    async def _answer(self) -> None:
        outcome: Refused | None = cancelled()
        context = StreamContext(self._write)
        try:
            with refusing():
                CALLER.set(self._caller)
                await self._pair.handlers[self._caller.method].stream_stream(self._up, context)
            outcome = None
        except Refused as refused:
            outcome = refused
        finally:
            self._outcome = outcome
            self._up.end()
            self._down.put_nowait(outcome)
            context.end()

    async def _write(self, reply: bytes) -> None:
        await self._room.acquire()
        self._down.put_nowait(reply)

    async def _next(self) -> bytes | Refused | None:
        reply = await self._down.get()
        self._room.release()
        return reply

    def _send(self, requests: Iterator[Message]) -> None:
        """Sends requests, each once there is room for it."""
        try:
            for request in requests:
                if not self._pair.run(self._up.put(request)).result():
                    return
            self._pair.run(self._up.put(None)).result()
        except (Over, CancelledError):  # it ends with its pair
            return
        except BaseException:
            self.cancel()
            raise


class RequestQueue:
    """The requests of a stream that were sent and not yet read by its handler."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[Message | None] = asyncio.Queue(AHEAD)
        self._ended = False
        self.size = 0

    def __aiter__(self) -> "RequestQueue":
        return self

    async def __anext__(self) -> Message:
        request = None if self._ended else await self._waiting.get()
        if request is None:
            raise StopAsyncIteration
        self.size = request.ByteSize()
        return request

    async def put(self, request: Message | None) -> bool:
        """Adds a request, or None for the end; returns whether the handler still reads."""
        if not self._ended:
            await self._waiting.put(request)
        return not self._ended

    def end(self) -> None:
        """Ends the reading of requests, so that waiting readers and writers go on."""
        self._ended = True
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._waiting.put_nowait(None)


class StreamContext:
    """The part of `grpc.aio.ServicerContext` that handlers of streams use."""

    def __init__(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        self.write = write
        self._at_end: list[Callable[[Any], None]] = []

    async def send_initial_metadata(self, metadata: object) -> None:
        """Does nothing: there is no client to wait for it."""

    def add_done_callback(self, tell: Callable[[Any], None]) -> None:
        self._at_end.append(tell)

    def end(self) -> None:
        """Runs the callbacks of the end of the call."""
        for tell in self._at_end:
            tell(self)

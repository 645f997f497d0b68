"""A stream both ways to a handler in this process, as a `grpc.Channel` makes one: as much of it as clients use."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

from google.protobuf.message import Message

from embedded.pair import Over, Pair
from embedded.refused import CallStatus, Refused, cancelled, refusing
from shared.caller import Caller
from shared.server.rpc.interceptor import CALLER

AHEAD = 2
"""Messages of either way that wait for their reader."""


class LocalStream(CallStatus):
    """One call: an iterator of replies, which ends by itself or raises Refused. A thread reads its requests."""

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
        """Ends it, with CANCELLED for whoever reads."""
        self._call.cancel()

    @property
    def refused(self) -> Refused:
        """Of a call that did not end by itself; with its pair it may end before it can say how."""
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
        """Reads the next one when there is room for it."""
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
    """Those that were sent and not yet answered; see `doors.both_ways.Requests`."""

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
        """None ends them. Whether anybody is still there to read it."""
        if not self._ended:
            await self._waiting.put(request)
        return not self._ended

    def end(self) -> None:
        """Nobody reads any more: whoever waits, on either side, goes on."""
        self._ended = True
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._waiting.put_nowait(None)


class StreamContext:
    """What a handler of a stream uses of `grpc.aio.ServicerContext`."""

    def __init__(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        self.write = write
        self._at_end: list[Callable[[Any], None]] = []

    async def send_initial_metadata(self, metadata: object) -> None:
        """There is nobody who waits for it."""

    def add_done_callback(self, tell: Callable[[Any], None]) -> None:
        self._at_end.append(tell)

    def end(self) -> None:
        """The call has ended."""
        for tell in self._at_end:
            tell(self)

"""RerankStream: many messages become one request, which is a call like any other once it is whole."""

import asyncio
from contextlib import ExitStack

from frontend_service.doors.both_ways import BothWays, Replies, Requests
from frontend_service.doors.tei_v1.codec import ranking
from frontend_service.limits import Limits
from shared.admission import Admission
from shared.admission.streams import OpenStream
from shared.errors import InvalidInput, LimitExceeded, SelvageError
from tei.v1 import tei_pb2 as pb

HELD_BYTES = 64 * 1024
"""So many at a time are counted as held by the request."""


class Gathering(BothWays[pb.RerankStreamRequest]):
    """One stream. What was gathered counts as the bytes of a request, as long as `held` is open."""

    def __init__(self, admission: Admission, stream: OpenStream, limits: Limits, held: ExitStack) -> None:
        """`limits`: what a Rerank may hold; what is gathered is held against them as it comes."""
        super().__init__(admission, stream, Replies(_nothing, lambda _: None), limits.documents)
        self._limits, self._holding = limits, held
        self._whole: pb.RerankRequest | None = None
        self._gathered = self._held = 0

    async def all(self, messages: Requests[pb.RerankStreamRequest]) -> pb.RerankRequest:
        """The request that they are together.

        Raises InvalidInput where they do not belong together, LimitExceeded where they are too many or too large,
        Overloaded where others hold too many bytes, DeadlineExceeded where they come too slowly.
        """
        seconds = self._admission.bounds.read_seconds
        try:
            async with asyncio.timeout(seconds):
                await self.run(messages)
        except TimeoutError:
            raise self._admission.refusals.too_slow(seconds) from None
        if self._whole is None:
            raise InvalidInput("the call ended without a message")
        return self._whole

    def _begin(self, request: pb.RerankStreamRequest, size: int, _: asyncio.TaskGroup) -> None:
        try:
            self._add(request, size)
        except SelvageError as error:
            self._stream.end(error)

    def _add(self, message: pb.RerankStreamRequest, size: int) -> None:
        if self._whole is None:
            self._whole = ranking.first_of_stream(message)
        self._gathered += size
        if self._gathered > self._limits.message_bytes:
            raise LimitExceeded(f"the request has more than {self._limits.message_bytes} bytes")
        if self._gathered > self._held:
            step = max(HELD_BYTES, self._gathered - self._held)
            self._holding.enter_context(self._admission.hold(step))
            self._held += step
        ranking.add_of_stream(self._whole, message)
        self._limits.check_count(len(self._whole.texts), "documents", self._limits.documents)

    async def _room(self) -> None:
        """There is, until a limit is met."""


async def _nothing(_: bytes) -> None:
    """No reply leaves before the last message has come."""

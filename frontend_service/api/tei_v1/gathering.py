"""RerankStream: many messages become one request, which is a call like any other once it is whole."""

import asyncio

from frontend_service.api.streams.two_way_stream import Replies, RequestStream, TwoWayStream
from frontend_service.api.tei_v1.codec import ranking
from frontend_service.domain.limits import Limits
from shared.errors import InvalidInput, LimitExceeded, SelvageError
from shared.server.admission import Admission
from shared.server.admission.holding import Holding
from shared.server.admission.streams import OpenStream
from tei.v1 import tei_pb2 as pb


class Gathering(TwoWayStream[pb.RerankStreamRequest]):
    """One stream. What was gathered is counted in `held`."""

    def __init__(self, admission: Admission, stream: OpenStream, limits: Limits, held: Holding) -> None:
        """`limits`: what a Rerank may hold; what is gathered is held against them as it comes."""
        super().__init__(admission, stream, Replies(_nothing, lambda _: None), limits.documents)
        self._limits, self._held = limits, held
        self._whole: pb.RerankRequest | None = None
        self._time: asyncio.Timeout

    async def all(self, messages: RequestStream[pb.RerankStreamRequest]) -> pb.RerankRequest:
        """The request that they are together.

        Raises InvalidInput where they do not belong together, LimitExceeded where they are too many or too large,
        Overloaded where others hold too many bytes, DeadlineExceeded where no message comes for long.
        """
        try:
            async with asyncio.timeout(self._seconds) as self._time:
                await self.run(messages)
        except TimeoutError:
            raise self._admission.refusals.too_slow(self._seconds) from None
        if self._whole is None:
            raise InvalidInput("the call ended without a message")
        return self._whole

    @property
    def _seconds(self) -> float:
        return self._admission.bounds.read_seconds

    def _begin(self, request: pb.RerankStreamRequest, size: int, _: asyncio.TaskGroup) -> None:
        self._time.reschedule(asyncio.get_running_loop().time() + self._seconds)
        try:
            self._add(request, size)
        except SelvageError as error:
            self._stream.end(error)

    def _add(self, message: pb.RerankStreamRequest, size: int) -> None:
        if self._whole is None:
            self._whole = ranking.first_of_stream(message)
        self._held.add(size)
        if self._held.held > self._limits.message_bytes:
            raise LimitExceeded(f"the request has more than {self._limits.message_bytes} bytes")
        ranking.add_of_stream(self._whole, message)
        self._limits.check_count(len(self._whole.texts), "documents", self._limits.documents)

    async def _room(self) -> None:
        """There is, until a limit is met."""


async def _nothing(_: bytes) -> None:
    """No reply leaves before the last message has come."""

"""RerankStream: many messages become one request, which is answered like a Rerank once it is whole."""

import asyncio

from frontend_service.api.streams.two_way_stream import Replies, RequestStream, TwoWayStream
from frontend_service.api.tei_v1.codec import ranking
from frontend_service.domain.limits import Limits
from shared.errors import InvalidInput, LimitExceeded, SelvageError
from shared.server.admission import Admission, Holding, OpenStream
from tei.v1 import tei_pb2 as pb


class RerankGathering(TwoWayStream[pb.RerankStreamRequest]):
    """A stream whose messages are gathered into one request. Their bytes are counted in `held`."""

    def __init__(self, admission: Admission, stream: OpenStream, limits: Limits, held: Holding) -> None:
        """`limits`: those of a Rerank; they are checked with every message."""
        super().__init__(admission, stream, Replies(_write_nothing, lambda _: None), max_requests=1)
        self._limits, self._held = limits, held
        self._request: pb.RerankRequest | None = None
        self._timeout: asyncio.Timeout

    async def gather(self, messages: RequestStream[pb.RerankStreamRequest]) -> pb.RerankRequest:
        """Returns the request that all messages are together.

        Raises InvalidInput where messages contradict each other, LimitExceeded where they are too many or too large,
        Overloaded where others hold too many bytes, DeadlineExceeded where no message comes for long.
        """
        try:
            async with asyncio.timeout(self._seconds) as self._timeout:
                await self.run(messages)
        except TimeoutError:
            raise self._admission.refusals.too_slow(self._seconds) from None
        if self._request is None:
            raise InvalidInput("the call ended without a message")
        return self._request

    @property
    def _seconds(self) -> float:
        return self._admission.bounds.read_seconds

    def _begin(self, request: pb.RerankStreamRequest, size: int, _: asyncio.TaskGroup) -> None:
        """Gathers a message. None stays in progress, so none is counted, and there is room for the next one at once."""
        self._timeout.reschedule(asyncio.get_running_loop().time() + self._seconds)
        try:
            self._add_message(request, size)
        except SelvageError as error:
            self._stream.end(error)

    def _add_message(self, message: pb.RerankStreamRequest, size: int) -> None:
        if self._request is None:
            self._request = ranking.begin_rerank_request(message)
        self._held.add(size)
        if self._held.held > self._limits.message_bytes:
            raise LimitExceeded(f"the request has more than {self._limits.message_bytes} bytes")
        ranking.add_stream_text(self._request, message)
        self._limits.check_count(len(self._request.texts), "documents", self._limits.documents)


async def _write_nothing(_: bytes) -> None:
    """Writes nothing: the only reply is sent by the servicer, after the last message."""

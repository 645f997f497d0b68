"""EmbedStream: batches of one caller, each a call of its own to the service, with its own outcome."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from frontend_service.doors.selvage_v1.codec import embedding
from frontend_service.doors.streaming import Streaming, uncounted
from frontend_service.frontend import Frontend
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedResponse, EmbedStreamRequest, EmbedStreamResponse
from shared.calls import Caller
from shared.errors import ResultTooLarge, SelvageError

Embed = Callable[[EmbedRequest], Awaitable[EmbedResponse]]


class Bulk:
    """Answers every batch: with its rows, in parts where they do not fit into a message, or with one error."""

    def __init__(
        self, frontend: Frontend, embed: Embed, caller: Caller, write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """`write` sends a serialised response."""
        self._frontend, self._embed, self._caller = frontend, embed, caller
        self._streaming = Streaming(frontend.calls.admission, write)

    async def run(self, batches: AsyncIterator[EmbedStreamRequest]) -> None:
        """Until all are answered. Raises SelvageError where something comes that is no batch, or nobody reads."""
        await self._streaming.run(batches, EmbedStreamRequest.ByteSize, self._answer)

    async def _answer(self, batch: EmbedStreamRequest) -> None:
        waiting = [(0, batch.request)]
        while waiting:
            start, request = waiting.pop()
            told = EmbedStreamResponse(id=batch.id, start=start, more=bool(waiting))
            try:
                reply = await self._frontend.calls.answer(self._caller, partial(self._part, request, told))
                is_read = self._streaming.hold(reply)
            except SelvageError as error:
                parts = embedding.halves(request) if isinstance(error, ResultTooLarge) else []
                if len(parts) > 1:
                    waiting += [(start + place, part) for place, part in reversed(parts)]
                    continue
                waiting, is_read = [], uncounted
                reply = _failed(batch.id, start, error)
            await self._streaming.send(reply, is_read)

    async def _part(self, request: EmbedRequest, told: EmbedStreamResponse) -> bytes:
        with self._frontend.calls.admission.hold(request.ByteSize()):
            response = await self._embed(request)
        return await self._frontend.offload(response.ByteSize(), partial(_filled, told), response)


def _filled(told: EmbedStreamResponse, response: EmbedResponse) -> bytes:
    told.response.CopyFrom(response)
    return told.SerializeToString()


def _failed(batch: int, start: int, error: SelvageError) -> bytes:
    return EmbedStreamResponse(id=batch, start=start, error=embedding.stream_error(error)).SerializeToString()

"""EmbedStream: batches of one caller, each a call of its own to the service, with its own outcome."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial

from frontend_service.doors.both_ways import REQUEST_BYTES, NotRead
from frontend_service.doors.selvage_v1.codec import embedding
from frontend_service.doors.streaming import Streaming
from frontend_service.frontend import Frontend
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedResponse, EmbedStreamRequest, EmbedStreamResponse
from shared.calls import Caller
from shared.deadline import Deadline
from shared.errors import Overloaded, ResultTooLarge, SelvageError

Embed = Callable[[EmbedRequest, Caller], Awaitable[EmbedResponse]]


class Bulk:
    """Answers every batch: with its rows, in parts where they do not fit into a message, or with one error."""

    def __init__(
        self, frontend: Frontend, embed: Embed, caller: Caller, write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """`write` sends a serialised response."""
        self._frontend, self._embed, self._caller = frontend, embed, caller
        self._deadline = None if caller.remaining is None else Deadline.after(caller.remaining)
        self._streaming = Streaming(frontend.calls.admission, EmbedStreamRequest.ByteSize, self._answer, write)

    async def run(self, batches: AsyncIterator[EmbedStreamRequest]) -> None:
        """Until all are answered. Raises SelvageError where something comes that is no batch, nobody reads, or the
        stream is ended."""
        with self._frontend.calls.stream(self._caller) as stream:
            await self._streaming.run(stream, batches)

    async def _answer(self, batch: EmbedStreamRequest) -> None:
        waiting = [(0, batch.request)]
        while waiting:
            start, request = waiting.pop()
            try:
                await self._part(request, EmbedStreamResponse(id=batch.id, start=start, more=bool(waiting)))
            except NotRead:
                raise
            except SelvageError as error:
                parts = embedding.halves(request) if isinstance(error, ResultTooLarge) else []
                if len(parts) > 1:
                    waiting += [(start + place, part) for place, part in reversed(parts)]
                elif isinstance(error, Overloaded) and await self._another_ended(request):
                    waiting.append((start, request))
                else:
                    told = EmbedStreamResponse(id=batch.id, start=start, error=embedding.stream_error(error))
                    await self._streaming.send(told.SerializeToString())
                    return

    async def _another_ended(self, request: EmbedRequest) -> bool:
        """A large one does not wait in memory."""
        return request.ByteSize() <= REQUEST_BYTES and await self._streaming.another_ended()

    async def _part(self, request: EmbedRequest, told: EmbedStreamResponse) -> None:
        """A call until its reply has been taken; only what is computed has a bound on its time."""
        calls, caller = self._frontend.calls, self._caller
        if self._deadline is not None:
            caller = replace(caller, remaining=self._deadline.remaining())
        with calls.running(caller):
            async with calls.timeout(caller):
                with calls.admission.hold(request.ByteSize()):
                    response = await self._embed(request, caller)
                reply = await self._frontend.offload(response.ByteSize(), partial(_filled, told), response)
                del response
            await self._streaming.send(reply)


def _filled(told: EmbedStreamResponse, response: EmbedResponse) -> bytes:
    told.response.CopyFrom(response)
    return told.SerializeToString()

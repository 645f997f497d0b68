"""EmbedStream: batches of one caller, each a call of its own to the service, with its own outcome."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from frontend_service.doors.selvage_v1.codec import embedding
from frontend_service.doors.streaming import REQUEST_BYTES, NotRead, Requests, Streaming
from frontend_service.frontend import Frontend
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedResponse, EmbedStreamRequest, EmbedStreamResponse
from shared.admission.streams import OpenStream
from shared.calls import Caller
from shared.deadline import Deadline
from shared.errors import Overloaded, ResultTooLarge, SelvageError

Embed = Callable[[EmbedRequest, int, Caller], Awaitable[EmbedResponse]]


class Bulk:
    """Answers every batch: with its rows, in parts where they do not fit into a message, or with one error."""

    def __init__(
        self,
        frontend: Frontend,
        embed: Embed,
        caller: Caller,
        stream: OpenStream,
        write: Callable[[bytes], Awaitable[None]],
        at_end: Callable[[Callable[[object], None]], None],
    ) -> None:
        """`embed` answers a message of about so many bytes; `write` sends a serialised response; as in `Streaming`."""
        self._frontend, self._embed, self._caller = frontend, embed, caller
        self._deadline = None if caller.remaining is None else Deadline.after(caller.remaining)
        self._streaming = Streaming(frontend.calls.admission, stream, self._answer, write, at_end)

    async def run(self, batches: Requests[EmbedStreamRequest]) -> None:
        """Until all are answered. Raises SelvageError where something comes that is no batch, nobody reads, or the
        stream is ended."""
        await self._streaming.run(batches)

    async def _answer(self, batch: EmbedStreamRequest, size: int) -> None:
        identity, start, waiting = batch.id, 0, [(0, batch.request)]
        del batch  # nobody holds a large one once it is computed
        try:
            with self._frontend.calls.admission.hold(size) as let_go:
                while waiting:
                    start, request = waiting.pop()
                    told = EmbedStreamResponse(id=identity, start=start, more=bool(waiting))
                    try:
                        reply = await self._computed(request, size, told)
                    except ResultTooLarge:
                        parts = await self._frontend.offload(size, embedding.halves, request)
                        if len(parts) < 2:
                            raise
                        waiting += [(start + place, part) for place, part in reversed(parts)]
                        continue
                    except Overloaded:
                        # a large one does not wait in memory
                        if size > REQUEST_BYTES or not await self._streaming.another_ended():
                            raise
                        waiting.append((start, request))
                        continue
                    del request
                    if not waiting:
                        let_go()
                    await self._streaming.send(reply)
        except NotRead:
            raise
        except SelvageError as error:
            told = EmbedStreamResponse(id=identity, start=start, error=embedding.stream_error(error))
            await self._streaming.send(told.SerializeToString())

    async def _computed(self, request: EmbedRequest, size: int, told: EmbedStreamResponse) -> bytes:
        """One call. It is over before its reply is read, which may take long."""
        calls, caller = self._frontend.calls, self._caller
        async with calls.admission.stream_requests:
            if self._deadline is not None:
                caller = replace(caller, remaining=self._deadline.remaining())
            with calls.running(caller):
                async with calls.timeout(caller):
                    response = await self._embed(request, size, caller)
                    return await self._frontend.offload(response.ByteSize(), partial(_filled, told), response)


def _filled(told: EmbedStreamResponse, response: EmbedResponse) -> bytes:
    told.response.CopyFrom(response)
    return told.SerializeToString()

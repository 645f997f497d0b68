"""EmbedStream: batches of one caller, each a call of its own to the service, with its own outcome."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from frontend_service.api.selvage_v1.codec import embedding
from frontend_service.api.selvage_v1.codec.embed_reply import EmbedReply
from frontend_service.api.streams.independent import IndependentStream
from frontend_service.api.streams.two_way_stream import REQUEST_BYTES, NotRead, Replies, RequestStream
from frontend_service.application.frontend import Frontend
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedStreamRequest, EmbedStreamResponse
from shared.caller import Caller
from shared.deadline import Deadline
from shared.errors import DeadlineExceeded, Overloaded, ResultTooLarge, SelvageError
from shared.server.admission.streams import OpenStream

TRIES = 16
"""Of what waits for others of its stream; it may as well be what takes so long."""

Embed = Callable[[EmbedRequest, int, Caller], Awaitable[EmbedReply]]


class Bulk:
    """Answers every batch: with its rows, in parts where they do not fit into a message, or with one error."""

    def __init__(self, frontend: Frontend, embed: Embed, caller: Caller, stream: OpenStream, replies: Replies) -> None:
        """`embed` answers a message of about so many bytes."""
        self._frontend, self._embed, self._caller = frontend, embed, caller
        self._deadline = None if caller.remaining is None else Deadline.after(caller.remaining)
        self._done = 0
        self._streaming = IndependentStream(frontend.calls.admission, stream, replies, self._answer)

    async def run(self, batches: RequestStream[EmbedStreamRequest]) -> None:
        """Until all are answered. Raises SelvageError where something comes that is no batch, nobody reads, or the
        stream is ended."""
        await self._streaming.run(batches)

    async def _answer(self, batch: EmbedStreamRequest, size: int) -> None:
        told, parts = EmbedStreamResponse(id=batch.id), [_Part(0, batch.request, size)]
        del batch  # nobody holds a large one once it is computed
        try:
            with self._frontend.calls.admission.hold(size) as let_go:
                while parts:
                    await self._next(parts, told, let_go)
            return
        except NotRead:
            raise
        except SelvageError as error:
            told.more = False
            told.error.CopyFrom(embedding.stream_error(error))
            parts.clear()
        # Out of that block: what an error met lies in memory as long as the error, and nobody may read this for long.
        await self._streaming.send(told.SerializeToString())

    async def _next(self, parts: "list[_Part]", told: EmbedStreamResponse, let_go: Callable[[int], None]) -> None:
        """Answers the last of `parts`, or halves it. `told`: what its reply has beside its rows."""
        part = parts.pop()
        told.start, told.more = part.start, bool(parts)
        reply = await self._computed(part, told)
        if reply is None:
            parts += await self._frontend.offload(part.size, _Part.halves, part)
            return
        let_go(part.size)
        self._done += 1
        del part
        await self._streaming.send(reply)

    async def _computed(self, part: "_Part", told: EmbedStreamResponse) -> bytes | None:
        """The reply to a part; None where it would be too large and the part can be halved.

        What is refused for others of this stream is tried again as they end; a large one does not wait in memory. So
        is what had to wait for others so long that the default time of a call was over.
        """
        tries = 0
        while True:
            before = self._done
            try:
                return await self._called(part, told)
            except ResultTooLarge:
                if part.texts < 2:
                    raise
                return None
            except DeadlineExceeded:
                tries += 1
                waited_for_others = self._deadline is None and self._done > before
                if not waited_for_others or tries == TRIES or part.size > REQUEST_BYTES:
                    raise
            except Overloaded:
                if part.size > REQUEST_BYTES or not await self._streaming.another_ended():
                    raise

    async def _called(self, part: "_Part", told: EmbedStreamResponse) -> bytes:
        """One call. It is over before its reply is read, which may take long."""
        calls, caller = self._frontend.calls, self._caller
        async with calls.admission.stream_requests:
            if self._deadline is not None:
                caller = replace(caller, remaining=self._deadline.remaining())
            with calls.running(caller):
                async with calls.timeout(caller):
                    response = await self._embed(part.request, part.size, caller)
                    return await self._frontend.offload(calls.admission.reserved, response.serialised_in, told)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some texts of a batch, from `start` on, of about so many bytes."""

    start: int
    request: EmbedRequest
    size: int

    @property
    def texts(self) -> int:
        return max(len(self.request.texts), len(self.request.tokenized))

    def halves(self) -> "list[_Part]":
        """The last one first."""
        (first, one), (second, two) = embedding.halves(self.request)
        half = self.size // 2
        return [_Part(self.start + second, two, self.size - half), _Part(self.start + first, one, half)]

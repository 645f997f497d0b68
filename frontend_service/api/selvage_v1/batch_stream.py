"""EmbedStream: batches of one caller, each a call of its own to the service, with its own outcome."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
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
"""Most tries of a part that misses its deadline while other parts of its stream are answered: the part itself may be
what takes so long."""

Embed = Callable[[EmbedRequest, int, Caller], Awaitable[EmbedReply]]
"""A function that answers a message of about so many bytes."""
SendReply = Callable[[EmbedReply, int], Awaitable[None]]
"""A function that sends so many rows of a text before the answer."""
EmbedInParts = Callable[[EmbedRequest, int, Caller, SendReply], Awaitable[EmbedReply]]
"""The same as `Embed`, with rows that are sent before the answer, which has the rest."""


class BatchStream:
    """Answers every batch of an EmbedStream: with its rows, in parts where they do not fit into a message, or with one
    error."""

    def __init__(
        self,
        frontend: Frontend,
        embed: Embed,
        embed_in_parts: EmbedInParts,
        caller: Caller,
        stream: OpenStream,
        replies: Replies,
    ) -> None:
        self._frontend, self._embed, self._embed_in_parts, self._caller = frontend, embed, embed_in_parts, caller
        self._deadline = None if caller.remaining is None else Deadline.after(caller.remaining)
        self._parts_done = 0
        self._requests = IndependentStream(frontend.calls.admission, stream, replies, self._answer_batch)

    async def run(self, batches: RequestStream[EmbedStreamRequest]) -> None:
        """Reads and answers all batches.

        Raises SelvageError where a message is no batch, where the caller does not read, or where the stream is ended.
        """
        await self._requests.run(batches)

    async def _answer_batch(self, batch: EmbedStreamRequest, size: int) -> None:
        head, parts = EmbedStreamResponse(id=batch.id), [_BatchPart(0, batch.request, size, batch.rows_in_parts)]
        del batch  # a large batch is not held once it is computed
        try:
            with self._frontend.calls.admission.hold(size) as let_go:
                while parts:
                    await self._answer_last_part(parts, head, let_go)
            return
        except NotRead:
            raise
        except SelvageError as error:
            head.more, head.first_row = False, 0
            head.error.CopyFrom(embedding.stream_error_to_pb(error))
            parts.clear()
        # Outside of the except block: an error keeps the frames that it passed in memory, and the caller may take long
        # to read this.
        await self._requests.send(head.SerializeToString())

    async def _answer_last_part(
        self, parts: "list[_BatchPart]", head: EmbedStreamResponse, let_go: Callable[[int], None]
    ) -> None:
        """Answers the last of `parts`, or replaces it by its halves. `head` has all of a reply but the rows."""
        part = parts.pop()
        head.start, head.more, head.first_row = part.start, bool(parts), 0
        reply = await self._compute(part, head)
        if reply is None:
            parts += await self._frontend.offload(part.size, _BatchPart.halves, part)
            return
        let_go(part.size)
        self._parts_done += 1
        del part
        await self._requests.send(reply)

    async def _compute(self, part: "_BatchPart", head: EmbedStreamResponse) -> bytes | None:
        """Returns the reply to a part, or None where it would be too large and the part can be halved.

        A part that is refused while others of its stream take the room is tried again when one of them ends; a large
        part is not, since it would wait in memory. A part is also tried again when it waited for others until the
        default time of a call was over. Nothing is tried again once rows of it have been sent.
        """
        tries = 0
        while True:
            parts_done_before = self._parts_done
            try:
                return await self._call(part, head)
            except ResultTooLarge:
                if part.texts < 2:
                    raise
                return None
            except DeadlineExceeded:
                tries += 1
                waited_for_others = self._deadline is None and self._parts_done > parts_done_before
                if part.rows_sent or not waited_for_others or tries == TRIES or part.size > REQUEST_BYTES:
                    raise
            except Overloaded:
                if part.rows_sent or part.size > REQUEST_BYTES or not await self._requests.wait_for_another():
                    raise

    async def _call(self, part: "_BatchPart", head: EmbedStreamResponse) -> bytes:
        """Computes a part as one call, which ends before the last reply is read: reading may take long."""
        calls, caller = self._frontend.calls, self._caller
        async with AsyncExitStack() as slot:
            await slot.enter_async_context(calls.admission.stream_requests)
            if self._deadline is not None:
                caller = replace(caller, remaining=self._deadline.remaining())
            with calls.running(caller):
                async with calls.timeout(caller):
                    response = await self._answer(part, head, caller, slot)
                    return await self._frontend.offload(calls.admission.reserved, response.serialize_in, head)

    async def _answer(
        self, part: "_BatchPart", head: EmbedStreamResponse, caller: Caller, slot: AsyncExitStack
    ) -> EmbedReply:
        """Answers a part; rows of a single text may be sent before. `head` gets the place of the rows that remain.

        `slot` holds the call's place among the calls of all streams. The call leaves it while its caller reads rows, so
        a slow reader holds up no other stream. How much is computed meanwhile is bounded by the bytes of results: those
        that the call has reserved, and the stream's share of all.
        """
        if not part.rows_in_parts or part.texts > 1:
            return await self._embed(part.request, part.size, caller)

        async def send(reply: EmbedReply, rows: int) -> None:
            before = EmbedStreamResponse(id=head.id, start=part.start, more=True, first_row=part.rows_sent)
            part.rows_sent += rows
            await slot.aclose()
            await self._requests.send_to_end(reply.serialize_in(before))  # even if the call's deadline passes meanwhile
            await slot.enter_async_context(self._frontend.calls.admission.stream_requests)

        reply = await self._embed_in_parts(part.request, part.size, caller, send)
        head.first_row = part.rows_sent
        return reply


@dataclass(slots=True)
class _BatchPart:
    """Consecutive texts of a batch, as a request of about `size` bytes. `start`: the place of the first text.

    `rows_in_parts`: whether rows of a single text may come in several replies. `rows_sent`: how many have been sent.
    """

    start: int
    request: EmbedRequest
    size: int
    rows_in_parts: bool = False
    rows_sent: int = 0

    @property
    def texts(self) -> int:
        """How many texts it has; the chunks of a document are one, since they are not computed apart."""
        return 1 if self.request.late_chunking else max(len(self.request.texts), len(self.request.tokenized))

    def halves(self) -> "list[_BatchPart]":
        """Both halves, the last one first."""
        (first_start, first), (last_start, last) = embedding.halve_request(self.request)
        half_size = self.size // 2
        return [
            _BatchPart(self.start + last_start, last, self.size - half_size, self.rows_in_parts),
            _BatchPart(self.start + first_start, first, half_size, self.rows_in_parts),
        ]

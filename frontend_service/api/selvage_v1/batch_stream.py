"""EmbedStream: batches of one caller, each a call of its own to the service, with its own outcome."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from frontend_service.api.selvage_v1 import codec
from frontend_service.api.selvage_v1.codec import EmbedReply
from frontend_service.api.streams import REQUEST_BYTES, NotRead, Replies, RequestStream, TwoWayStream
from frontend_service.application.frontend import Frontend
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedStreamRequest, EmbedStreamResponse
from shared.caller import Caller
from shared.errors import DeadlineExceeded, Overloaded, ResultTooLarge, SelvageError
from shared.server.admission import OpenStream
from shared.terms import Deadline

TRIES = 16
"""Most tries of a part that misses its deadline while other parts of its stream are answered: the part itself may be
what takes so long."""

Embed = Callable[[EmbedRequest, int, Caller], Awaitable[EmbedReply]]
"""A function that answers a message of about so many bytes."""


class BatchStream:
    """Answers every batch of an EmbedStream: with its vectors, in several replies where they do not fit into one, or
    with one error."""

    def __init__(self, frontend: Frontend, embed: Embed, caller: Caller, stream: OpenStream, replies: Replies) -> None:
        self._frontend, self._embed, self._caller = frontend, embed, caller
        self._deadline = None if caller.remaining is None else Deadline.after(caller.remaining)
        self._parts_done = 0
        self._requests = TwoWayStream(frontend.calls.admission, stream, replies, self._answer_batch)

    async def run(self, batches: RequestStream[EmbedStreamRequest]) -> None:
        """Reads and answers all batches.

        Raises SelvageError where a message is no batch, where the caller does not read, or where the stream is ended.
        """
        await self._requests.run(batches)

    async def _answer_batch(self, batch: EmbedStreamRequest, size: int) -> None:
        head, parts = EmbedStreamResponse(id=batch.id), [_BatchPart(0, batch.request, size)]
        del batch  # a large batch is not held once it is computed
        try:
            with self._frontend.calls.admission.hold(size) as let_go:
                while parts:
                    await self._answer_last_part(parts, head, let_go)
            return
        except NotRead:
            raise
        except SelvageError as error:
            head.more = False
            head.error.CopyFrom(codec.stream_error_to_pb(error))
            parts.clear()
        # Outside of the except block: an error keeps the frames that it passed in memory, and the caller may take long
        # to read this.
        await self._requests.send(head.SerializeToString())

    async def _answer_last_part(
        self, parts: "list[_BatchPart]", head: EmbedStreamResponse, let_go: Callable[[int], None]
    ) -> None:
        """Answers the last of `parts`, or replaces it by its halves. `head` has all of a reply but the rows."""
        part = parts.pop()
        head.start, head.more = part.start, bool(parts)
        reply = await self._compute(part, head)
        if reply is None:
            parts += await self._frontend.offload(part.size, _BatchPart.halves, part)
            return
        let_go(part.size)
        self._parts_done += 1
        del part
        await self._requests.send(reply)

    async def _compute(self, part: "_BatchPart", head: EmbedStreamResponse) -> bytes | None:
        """Returns the reply to a part, or None where it would be too large and the part can be halved: not where one
        text alone is too large, which the error names by its place in the batch, since the whole batch was asked first.

        A part that is refused while others of its stream take the room is tried again when one of them ends; a large
        part is not, since it would wait in memory. A part is also tried again when it waited for others until the
        default time of a call was over.
        """
        tries = 0
        while True:
            parts_done_before = self._parts_done
            try:
                return await self._call(part, head)
            except ResultTooLarge as error:
                if part.texts < 2 or error.field:
                    raise
                return None
            except DeadlineExceeded:
                tries += 1
                waited_for_others = self._deadline is None and self._parts_done > parts_done_before
                if not waited_for_others or tries == TRIES or part.size > REQUEST_BYTES:
                    raise
            except Overloaded:
                if part.size > REQUEST_BYTES or not await self._requests.wait_for_another():
                    raise

    async def _call(self, part: "_BatchPart", head: EmbedStreamResponse) -> bytes:
        """Computes a part as one call, which ends before the last reply is read: reading may take long."""
        calls, caller = self._frontend.calls, self._caller
        async with calls.admission.stream_requests:
            if self._deadline is not None:
                caller = replace(caller, remaining=self._deadline.remaining())
            with calls.running(caller):
                async with calls.timeout(caller):
                    response = await self._embed(part.request, part.size, caller)
                    return await self._frontend.offload(calls.admission.reserved, response.serialize_in, head)


@dataclass(slots=True)
class _BatchPart:
    """Consecutive texts of a batch, as a request of about `size` bytes. `start`: the place of the first text."""

    start: int
    request: EmbedRequest
    size: int

    @property
    def texts(self) -> int:
        """How many texts it has; the chunks of a document are one, since they are not computed apart."""
        return 1 if self.request.late_chunking else max(len(self.request.texts), len(self.request.tokenized))

    def halves(self) -> "list[_BatchPart]":
        """Both halves, the last one first."""
        (first_start, first), (last_start, last) = codec.halve_request(self.request)
        half_size = self.size // 2
        return [
            _BatchPart(self.start + last_start, last, self.size - half_size),
            _BatchPart(self.start + first_start, first, half_size),
        ]

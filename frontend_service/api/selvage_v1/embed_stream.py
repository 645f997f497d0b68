"""EmbedStream of selvage.v1: batches of one caller, each a call of its own to the service, with its own outcome."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from google.rpc.code_pb2 import Code

from frontend_service.api.streams import REQUEST_BYTES, NotRead, Replies, RequestStream, TwoWayStream
from frontend_service.frontend import Frontend
from selvage.v1 import embedding_pb2
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedStreamRequest, EmbedStreamResponse
from shared.caller import Caller, Deadline
from shared.errors import DeadlineExceeded, Overloaded, ResultTooLarge, SelvageError, printable
from shared.server.admission import Holding, OpenStream
from shared.value_codec import duration_to_pb

TRIES = 16
"""Most tries of a part that misses its deadline while other parts of its stream are answered: the part itself may be
what takes so long."""


class EmbedAnswer(Protocol):
    """An answer that is serialised within the reply to a batch, whose other fields are in `head`."""

    def serialize_in(self, head: EmbedStreamResponse) -> bytes: ...


Embed = Callable[[EmbedRequest, int], Awaitable[EmbedAnswer]]
"""A function that answers a message of about so many bytes."""


def stream_error_to_pb(error: SelvageError) -> embedding_pb2.StreamError:
    message = embedding_pb2.StreamError(
        code=Code.Value(error.status),
        reason=error.reason,
        message=printable(error.message),
        field=printable(error.field),
    )
    if error.retry_after is not None:
        message.retry_after.CopyFrom(duration_to_pb(error.retry_after))
    return message


def halve_request(message: EmbedRequest) -> list[tuple[int, EmbedRequest]]:
    """Splits the texts of a request into two requests, each with the place of its first text; one text stays whole."""
    count = max(len(message.texts), len(message.tokenized))
    if count < 2:
        return [(0, message)]
    requests = []
    for start, stop in ((0, count // 2), (count // 2, count)):
        half = EmbedRequest()
        half.CopyFrom(message)
        for texts in (half.texts, half.tokenized, half.spans):
            del texts[stop:]
            del texts[:start]
        requests.append((start, half))
    return requests


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
        head, parts = EmbedStreamResponse(id=batch.id), [BatchPart(0, batch.request, size)]
        del batch  # a large batch is not held once it is computed
        try:
            with self._frontend.calls.admission.hold(size) as held:
                while parts:
                    await self._answer_last_part(parts, head, held)
            return
        except NotRead:
            raise
        except SelvageError as error:
            head.more = False
            head.error.CopyFrom(stream_error_to_pb(error))
            parts.clear()
        # Outside of the except block: an error keeps the frames that it passed in memory, and the caller may take long
        # to read this.
        await self._requests.send(head.SerializeToString())

    async def _answer_last_part(self, parts: "list[BatchPart]", head: EmbedStreamResponse, held: Holding) -> None:
        """Answers the last of `parts`, or replaces it by its halves. `head` has all of a reply but the rows; `held`:
        the bytes of the batch."""
        part = parts.pop()
        head.start, head.more = part.start, bool(parts)
        reply = await self._compute(part, head)
        if reply is None:
            parts += await self._frontend.pipeline.offload(part.size, BatchPart.halves, part)
            return
        held.let_go(part.size)
        self._parts_done += 1
        del part
        await self._requests.send(reply)

    async def _compute(self, part: "BatchPart", head: EmbedStreamResponse) -> bytes | None:
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

    async def _call(self, part: "BatchPart", head: EmbedStreamResponse) -> bytes:
        """Computes a part as one call."""
        calls, pipeline = self._frontend.calls, self._frontend.pipeline

        async def work() -> bytes:
            response = await self._embed(part.request, part.size)
            return await pipeline.offload(calls.admission.reserved, response.serialize_in, head)

        return await calls.answer_in_stream(self._caller, self._deadline, work)


@dataclass(slots=True)
class BatchPart:
    """Consecutive texts of a batch, as a request of about `size` bytes. `start`: the place of the first text."""

    start: int
    request: EmbedRequest
    size: int

    @property
    def texts(self) -> int:
        """How many texts it has; the chunks of a document are one, since they are not computed apart."""
        return 1 if self.request.late_chunking else max(len(self.request.texts), len(self.request.tokenized))

    def halves(self) -> "list[BatchPart]":
        """Both halves, the last one first."""
        (first_start, first), (last_start, last) = halve_request(self.request)
        half_size = self.size // 2
        return [
            BatchPart(self.start + last_start, last, self.size - half_size),
            BatchPart(self.start + first_start, first, half_size),
        ]

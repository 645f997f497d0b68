"""A thread for each target: it sends batches of the queue and records their results, through one stream at a time."""

import threading
from collections.abc import Callable, Iterator

from selvage.bulk.batch_queue import FIRST, LONGEST, BatchQueue, OpenStream
from selvage.bulk.failures import Failed
from selvage.bulk.service import BulkService
from selvage.bulk.values import values_of_reply
from selvage.errors import Cancelled, DeadlineExceeded, Overloaded, SelvageError, Unavailable, from_stream
from selvage.messages.embedding import Template
from selvage.messages.inputs import Inputs
from selvage.v1.embedding_pb2 import EmbedStreamRequest, EmbedStreamResponse

PASSING = (Unavailable, DeadlineExceeded, Overloaded, Cancelled)
"""Errors that end a stream, and after which another stream is opened until the queue's patience is over."""


class TargetThread(threading.Thread):
    """Works until the queue has no more batches. A service that returns with another model ends the work."""

    def __init__(
        self,
        service: BulkService,
        queue: BatchQueue,
        template: Template,
        fingerprint: str,
        tell: Callable[[str], None],
    ) -> None:
        """`tell`: takes a line for people, where the service has no stream left for this command."""
        super().__init__(name=f"selvage-bulk-{service.name}", daemon=True)
        self._service, self._queue, self._template, self._fingerprint = service, queue, template, fingerprint
        self._tell = tell
        self._lost_streams = 0
        self._is_told = False

    def run(self) -> None:
        pause = 0.0
        try:
            while self._queue.wait_for_work(pause):
                pause = self._run_stream()
        except SelvageError as error:
            self._queue.fail(Failed(f"{self._service.name}: {error}"))
        except Exception as error:
            self._queue.fail(error)

    def _run_stream(self) -> float:
        """Runs one stream from its beginning to its end; returns the seconds to wait before the next one."""
        stream, is_refused = OpenStream(), False
        try:
            self._check_model()
            is_refused = True  # until it replies: what is refused of an open stream is a reply
            for reply in self._service.replies(self._requests(stream)):
                is_refused = False
                self._record_reply(stream, reply)
            error: SelvageError = Unavailable("the stream was ended", retry_after=0.0)
        except PASSING as passing:
            error = passing
        finally:
            stream.ended = True
        is_refused = is_refused and isinstance(error, Overloaded)
        if is_refused and not self._is_told:
            self._tell(f"{self._service.name} has no stream left: {error}; it goes on when another stream ends")
        self._is_told = is_refused
        self._queue.record_stream_end(stream, error, counts=not is_refused)
        self._lost_streams += 1
        return error.retry_after if error.retry_after is not None else _pause_after(self._lost_streams)

    def _check_model(self) -> None:
        """Raises Failed where the service has another model than the work was begun with."""
        fingerprint = self._service.card().fingerprint
        if fingerprint != self._fingerprint:
            raise Failed(
                f"{self._service.name}: its model has the fingerprint {fingerprint[:16]}, "
                f"the work was begun with {self._fingerprint[:16]}"
            )

    def _requests(self, stream: OpenStream) -> Iterator[EmbedStreamRequest]:
        while (batch := self._queue.next_batch(stream)) is not None:
            inputs = Inputs(entries=batch.texts, tokenized=False, single=False)
            yield EmbedStreamRequest(id=batch.id, request=self._template.request(inputs, slice(0, len(inputs))))

    def _record_reply(self, stream: OpenStream, reply: EmbedStreamResponse) -> None:
        if reply.WhichOneof("outcome") == "error":
            self._queue.record_refusal(stream, reply.id, from_stream(reply.error, ""), whole=not reply.start)
            return
        self._lost_streams = 0
        self._queue.record_values(stream, reply.id, reply.start, values_of_reply(reply.response), more=reply.more)


def _pause_after(lost_streams: int) -> float:
    """Seconds before the next stream, after so many in a row that brought no reply."""
    doublings = min(lost_streams, 16)  # more than 1,023, which a target that stays away reaches, overflow a float
    return min(FIRST * 2.0**doublings, LONGEST)

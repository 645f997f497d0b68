"""A thread a service: takes batches from the board and brings their answers, through one stream after the other."""

import threading
from collections.abc import Iterator

from selvage.bulk.batch_queue import FIRST, LONGEST, Board, Session
from selvage.bulk.failures import Failed
from selvage.bulk.service import BulkService
from selvage.bulk.values import of_reply
from selvage.errors import Cancelled, DeadlineExceeded, Overloaded, SelvageError, Unavailable, from_stream
from selvage.messages.embedding import Template
from selvage.messages.inputs import Inputs
from selvage.v1.embedding_pb2 import EmbedStreamRequest, EmbedStreamResponse

PASSING = (Unavailable, DeadlineExceeded, Overloaded, Cancelled)
"""Ends of a stream after which another one may go on; whether any answers at all is for the board to watch."""


class TargetThread(threading.Thread):
    """Goes on until the board has no more work. A service that comes back with another model ends the work."""

    def __init__(self, service: BulkService, board: Board, template: Template, fingerprint: str) -> None:
        super().__init__(name=f"selvage-bulk-{service.name}", daemon=True)
        self._service, self._board, self._template, self._fingerprint = service, board, template, fingerprint
        self._losses = 0

    def run(self) -> None:
        rest = 0.0
        try:
            while self._board.has_work(rest):
                rest = self._once()
        except SelvageError as error:
            self._board.fail(Failed(f"{self._service.name}: {error}"))
        except Exception as error:
            self._board.fail(error)

    def _once(self) -> float:
        """One stream from its beginning to its end; seconds until the next one."""
        session = Session()
        try:
            self._check_model()
            for reply in self._service.answers(self._requests(session)):
                self._take(session, reply)
            error: SelvageError = Unavailable("the stream was ended", retry_after=0.0)
        except PASSING as passing:
            error = passing
        finally:
            session.ended = True
        self._board.lost(session, error)
        self._losses += 1
        return error.retry_after if error.retry_after is not None else _rest(self._losses)

    def _check_model(self) -> None:
        found = self._service.card().fingerprint
        if found != self._fingerprint:
            told = f"its model has the fingerprint {found[:16]}, the work was begun with {self._fingerprint[:16]}"
            raise Failed(f"{self._service.name}: {told}")

    def _requests(self, session: Session) -> Iterator[EmbedStreamRequest]:
        while (batch := self._board.take(session)) is not None:
            inputs = Inputs(entries=batch.texts, tokenized=False, single=False)
            yield EmbedStreamRequest(id=batch.id, request=self._template.request(inputs, slice(0, len(inputs))))

    def _take(self, session: Session, reply: EmbedStreamResponse) -> None:
        if reply.WhichOneof("outcome") == "error":
            self._board.refused(session, reply.id, from_stream(reply.error, ""), whole=not reply.start)
            return
        self._losses = 0
        self._board.put(session, reply.id, reply.start, of_reply(reply.response), more=reply.more)


def _rest(losses: int) -> float:
    """Seconds before the next stream, after so many that brought nothing."""
    doublings = min(losses, 16)  # a float ends at 1,024 of them, which a target that stays away reaches
    return min(FIRST * 2.0**doublings, LONGEST)

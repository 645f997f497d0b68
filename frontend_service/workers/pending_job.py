"""A job that a worker has not answered yet, and what has come of its result. Knows no other jobs."""

import asyncio
from dataclasses import dataclass

from frontend_service.workers.reply_check import ReplyCheck, WrongReply
from frontend_service.workers.row_parts import RowParts
from selvage.worker.v1 import worker_pb2 as pb
from shared.codec.results import ResultAssembly
from shared.jobs import ChunkKind, Job, JobResult, PackedBytes

ROW_KINDS: dict[int, str] = {
    ChunkKind.MULTI_VECTOR: "data",
    ChunkKind.MULTI_VECTOR_SCALES: "scales",
    ChunkKind.TOKEN_IDS: "ids",
}
"""What the bytes of token rows are called in `RowParts.put`."""
ANSWER_CHUNKS = 16
"""Most pieces in one answer: more than a worker has kinds of them."""
UNREAD_BYTES = 64 * 1024 * 1024
"""Most bytes of rows that were on their way when a worker was asked to pause: a worker has no more unsent."""


@dataclass(slots=True, kw_only=True, eq=False)
class PendingJob:
    """A job without an outcome. `sent`: whether it has left in a message. `parts`: where its token rows go."""

    job: Job
    future: "asyncio.Future[ResultAssembly]"
    assembly: ResultAssembly
    check: ReplyCheck
    parts: RowParts | None = None
    sent: bool = False

    def append(self, kind: int, data: PackedBytes) -> None:
        """Takes a piece of the bytes of a kind. Raises what `ReplyCheck.take` raises."""
        if not self.sent:
            raise WrongReply("it answered a job that it had not got yet")
        self.check.take(kind, data)
        if self.parts is None or kind not in ROW_KINDS:
            self.assembly.append(kind, data)
            return
        self.parts.put(**{ROW_KINDS[kind]: data})
        if self.parts.held > self.check.expected.unread + UNREAD_BYTES:
            raise WrongReply("it went on with a job that it was asked to pause")

    def add(self, part: pb.AnswerPart) -> None:
        """Takes a part of the answer, the last of which ends the job. Raises the job's own error, and WrongReply."""
        if not self.sent:
            raise WrongReply("it answered a job that it had not got yet")
        if len(part.chunks) > ANSWER_CHUNKS:
            raise WrongReply("an answer has too many pieces", f"{len(part.chunks)}")
        for chunk in part.chunks:
            self.append(chunk.kind, chunk.data)
        if self.assembly.end_with(part):
            self.future.set_result(self.assembly)

    def checked_result(self, assembly: ResultAssembly) -> JobResult:
        """The result of the whole answer. Raises WrongReply where it is not what was asked for."""
        return self.check.check(assembly.result())

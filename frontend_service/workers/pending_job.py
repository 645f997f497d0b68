"""A job that a worker has not answered yet, and what has come of its result. Knows no other jobs."""

import asyncio
from dataclasses import dataclass

from frontend_service.workers.reply_check import ReplyCheck, WrongReply
from selvage.worker.v1 import worker_pb2 as pb
from shared.codec.results import ResultAssembly
from shared.jobs import Job, JobResult, PackedBytes

ANSWER_CHUNKS = 16
"""Most pieces in one answer: more than a worker has kinds of them."""


@dataclass(slots=True, kw_only=True, eq=False)
class PendingJob:
    """A job without an outcome. `sent`: whether it has left in a message."""

    job: Job
    future: "asyncio.Future[ResultAssembly]"
    assembly: ResultAssembly
    check: ReplyCheck
    sent: bool = False

    def append(self, kind: int, data: PackedBytes) -> None:
        """Takes a piece of the bytes of a kind. Raises what `ReplyCheck.take` raises."""
        if not self.sent:
            raise WrongReply("it answered a job that it had not got yet")
        self.check.take(kind, data)
        self.assembly.append(kind, data)

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

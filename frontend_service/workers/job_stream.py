"""The open stream of a link: jobs of many callers leave together, results come back in pieces, and are checked.

A worker is ours, so its numbers are not proved. Bytes are counted: `JobReply.append` sees every piece as it comes, so
that no mistake makes the frontend hold more than was asked for; `check` sees the whole result, in a thread where it is
large, and refuses NaN and infinity.
"""

import asyncio
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from frontend_service.domain.limits import ExpectedReply
from frontend_service.workers.merging import groups_of, merge_key, merged_job, merged_reply, results_of
from selvage.worker.v1 import worker_pb2 as pb
from shared.errors import (
    DeadlineExceeded,
    GivenBack,
    LimitExceeded,
    Overloaded,
    ResultTooLarge,
    SelvageError,
    WorkerUnavailable,
)
from shared.jobs import MESSAGE_SEQUENCES, Job, JobResult, PackedBytes
from shared.link_codec import ResultAssembly, job_bytes, jobs_to_pb, leading_piece, load_from_pb
from shared.load import SHORT, TURNS_PER_STEP, Load
from shared.server.status import to_domain_error
from shared.tasks import THREAD_BYTES, either, offload, until_stuck
from shared.value_codec import MESSAGE_BYTES
from shared.vectors import DataType

MESSAGE_JOBS = 1024
"""Most jobs in one message; the rest goes into the next."""
PACE = 0.002
"""Least seconds from one message to the next: what comes meanwhile leaves together. A message costs both sides as much
as several of its jobs. A lone caller never waits."""
SILENCE = 5.0
"""Seconds without a message, while this process runs, after which a worker counts as lost; it sends one every second at
least."""
INFINITY = {DataType.FLOAT16: 0x7C00, DataType.BFLOAT16: 0x7F80}
"""The 16 bits of infinity in each type, without the sign; larger ones are NaN."""


class WrongReply(Exception):
    """Something that a worker sent does not fit what it was asked for.

    `reason`: one of a few texts, by which the log knows a repetition. The message has the numbers too.
    """

    def __init__(self, reason: str, numbers: str = "") -> None:
        super().__init__(f"{reason} ({numbers})" if numbers else reason)
        self.reason = reason


class JobReply(ResultAssembly):
    """The reply to one job as it comes, held against what is expected."""

    def __init__(self, expected: ExpectedReply) -> None:
        super().__init__()
        self.expected = expected

    def append(self, kind: int, data: PackedBytes) -> None:
        """Takes a piece. Raises WrongReply; ResultTooLarge for what fits into no reply to a caller."""
        expected = self.expected
        wanted = expected.kinds.get(kind)
        if wanted is None:
            raise WrongReply("it sent a kind of numbers that was not asked for", f"kind {kind}")
        size = self.sizes.get(kind, 0) + len(data)
        most = wanted.size(expected.rows, expected.entries)
        if size > most:
            raise WrongReply("it sent more than was asked for", f"{size} bytes of kind {kind}, not {most}")
        if size > MESSAGE_BYTES and wanted.entry:
            raise ResultTooLarge(f"the sparse vectors have more than {MESSAGE_BYTES} bytes; set sparse_top_k")
        super().append(kind, data)

    def checked_result(self) -> JobResult:
        """The whole result. Raises WrongReply where it is not what was asked for."""
        return self.check(self.result())

    def check(self, result: JobResult) -> JobResult:
        """Returns the result if it has what was asked for. Raises WrongReply."""
        expected = self.expected
        sparse = result.sparse.lengths if result.sparse else ()
        self._check_counts("numbers of token rows", result.row_lengths, expected.rows)
        self._check_counts("sparse vectors", sparse, expected.entries)
        for vectors, wanted in ((result.dense, expected.dense), (result.tokens, expected.tokens)):
            dimensions = 0 if vectors is None else vectors.dimensions
            if dimensions != wanted:
                raise WrongReply("rows have other dimensions", f"{dimensions}, not {wanted}")
        rows, entries = sum(result.row_lengths), sum(sparse)
        for kind, size in expected.kinds.items():
            taken, right = self.sizes.get(kind, 0), size.size(rows, entries)
            if taken != right:
                less = "less" if taken < right else "more"
                raise WrongReply(f"it sent {less} than was asked for", f"{taken} bytes of kind {kind}, not {right}")
        self._check_numbers(result)
        return result

    def _check_counts(self, what: str, lengths: Sequence[int], most: int) -> None:
        """Raises WrongReply where there is not a length for each sequence, or one where none was asked for."""
        wanted = self.expected.sequences if most else 0
        if len(lengths) != wanted:
            raise WrongReply(f"it told of other {what} than were asked for", f"{len(lengths)}, not {wanted}")

    def _check_numbers(self, result: JobResult) -> None:
        for vectors in (result.dense, result.tokens):
            if vectors is not None:
                self._check_rows(vectors.data)
                check_finite(vectors.scales)
        for numbers in (result.scores, result.similarities, result.sparse.values if result.sparse else b""):
            check_finite(numbers)

    def _check_rows(self, data: PackedBytes) -> None:
        """Raises WrongReply for NaN and infinity, which half precision has for large numbers of rows of any length."""
        data_type = self.expected.data_type
        if data_type is DataType.FLOAT32:
            check_finite(data)
        elif data_type in INFINITY:
            largest = (np.frombuffer(data, dtype="<u2") & 0x7FFF).max(initial=0)
            if largest >= INFINITY[data_type] + (not self.expected.unit):
                raise WrongReply("it sent numbers that are not finite")


def check_finite(data: PackedBytes) -> None:
    """Raises WrongReply where float32 numbers are NaN or infinite."""
    if len(data) and not np.isfinite(np.frombuffer(data, dtype="<f4")).all():
        raise WrongReply("it sent numbers that are not finite")


@dataclass(slots=True, kw_only=True, eq=False)
class PendingJob:
    """A job that a worker has not answered yet, and what has come of its reply. `future`: done when all has come; its
    result is None while nobody has made and checked that of the job.

    `came`: when, by the event loop's clock. `sent`: it has left in a message. `alone`: it must not be merged. `merged`:
    the job that it has left in. `members`: of a merged job, those that it is made of.
    """

    job: Job
    reply: JobReply
    future: "asyncio.Future[JobResult | None]"
    came: float
    sent: bool = False
    alone: bool = False
    merged: "PendingJob | None" = None
    members: "Sequence[PendingJob]" = ()


class JobStream:
    """Gives every job one outcome: its result or an error, at the latest when the stream breaks.

    Jobs that come within PACE of a message leave together in the next one, and those that want the same leave as one
    job. So a lone caller never waits, and many callers share the cost of a message.

    `load`: what the worker said of its load last. `key_tokens`: tokens of the jobs without an outcome, by fairness key.
    """

    def __init__(self, call: Any, fingerprint: str, message_threads: Executor, on_change: Callable[[], None]) -> None:
        """`call` writes and reads bytes. `message_threads`: where large messages are made and read.

        `on_change` is called when the worker begins or ends to drain or to stall, or gives another reason for it.
        """
        self._call, self._fingerprint = call, fingerprint
        self._message_threads, self._on_change = message_threads, on_change
        self._pending: dict[int, PendingJob] = {}
        self._outgoing: deque[PendingJob] = deque()
        self._large: deque[tuple[PendingJob, bytes]] = deque()
        self._cancelled: list[int] = []
        self._merged_ids = itertools.count(random.getrandbits(62))
        self._wake = asyncio.Event()
        self._messages = 0  # that came
        self._ended_by: SelvageError | WrongReply | None = None
        self.load, self._heard = Load(), 0.0  # when it came, by the event loop's clock
        self._unreported: dict[int, int] = {}  # tokens of the jobs since the last load, by id
        self.key_tokens: Counter[str] = Counter()

    @property
    def ended(self) -> bool:
        """Whether it broke, and every job of it has got an error."""
        return self._ended_by is not None

    @property
    def unheard_seconds(self) -> float:
        """Seconds for which others may have sent work since the worker told its load; see `Load.unheard`."""
        return self.load.unheard(asyncio.get_running_loop().time() - self._heard)

    def unreported_before(self, tokens: int) -> int:
        """Most tokens, of jobs that the worker's load does not show yet, that are served before a job of `tokens`."""
        limit = tokens + self.load.turn
        return sum([size if size < SHORT else min(size, limit) for size in self._unreported.values()])

    async def run(self, job: Job, expected: ExpectedReply) -> JobResult:
        """Has the worker compute a job, whose reply must be as `expected`. Cancelling it cancels the job.

        Raises the job's own error, WorkerUnavailable, GivenBack where the job was not sent, and WrongReply.
        """
        if len(job.tokens) > MESSAGE_SEQUENCES:  # it would end the link, and with it the jobs of all callers
            raise LimitExceeded(f"the request has {len(job.tokens)} texts or pairs, the limit is {MESSAGE_SEQUENCES}")
        if self._ended_by is not None:
            raise _given_back(self._ended_by)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[JobResult | None] = loop.create_future()
        reply = JobReply(expected)
        pending = PendingJob(job=job, reply=reply, future=future, came=loop.time())
        self._pending[job.id] = pending
        tokens = job.tokens.total
        self._unreported[job.id] = tokens
        self.key_tokens[job.key] += tokens
        try:
            if job_bytes(job) > THREAD_BYTES:
                payload = await offload(
                    self._message_threads, job_bytes(job), partial(_serialise, self._fingerprint), job
                )
                if len(payload) > MESSAGE_BYTES:  # it would end the link, and with it the jobs of all callers
                    raise LimitExceeded(
                        f"the request takes {len(payload)} bytes, a message has at most {MESSAGE_BYTES}"
                    )
                self._large.append((pending, payload))
            else:
                self._outgoing.append(pending)
            self._wake.set()
            result = await future
        except asyncio.CancelledError:
            if pending.merged is not None:
                if all(member.future.done() for member in pending.merged.members):
                    self._cancel_at_worker(pending.merged)
                    pending.merged.future.cancel()
            elif pending.sent:
                self._cancel_at_worker(pending)
            raise
        finally:
            self._pending.pop(job.id, None)
            self._unreported.pop(job.id, None)
            self.key_tokens[job.key] -= tokens
            if self.key_tokens[job.key] <= 0:
                del self.key_tokens[job.key]
        if result is not None:
            return result
        return await offload(self._message_threads, reply.size, JobReply.checked_result, reply)

    async def serve(self) -> None:
        """Sends and receives until the stream breaks; then every job gets the error that this raises."""
        ended_by: SelvageError | WrongReply = WorkerUnavailable("the link to the worker was closed", retry_after=1.0)
        try:
            await either(self._write(), self._read(), self._listen())
        except grpc.aio.AioRpcError as error:
            domain_error = to_domain_error(error)
            if isinstance(domain_error, LimitExceeded):
                ended_by = WrongReply("it sent a message of too many bytes")
            else:  # whatever ended the stream, it is no error of the jobs
                ended_by = WorkerUnavailable(domain_error.message, retry_after=1.0)
            raise ended_by from None
        except (SelvageError, WrongReply) as error:
            ended_by = error
            raise
        finally:
            self._ended_by = ended_by
            for pending in self._pending.values():
                if not pending.future.done():
                    pending.future.set_exception(ended_by if pending.sent else _given_back(ended_by))

    async def _write(self) -> None:
        clock, left = asyncio.get_running_loop().time, -inf
        while True:
            await self._wake.wait()
            if len(self._pending) > 1 and (early := left + PACE - clock()) > 0:
                await asyncio.sleep(early)
            left = clock()
            self._wake.clear()
            while self._outgoing or self._large or self._cancelled:
                if (message := self._next_message()) is not None:
                    await self._call.write(message)
                if self._large:
                    pending, payload = self._large.popleft()
                    if not pending.future.done():
                        pending.sent = True
                        await self._call.write(payload)

    def _next_message(self) -> bytes | None:
        """A message with the cancels and small jobs that wait; None where none do."""
        waiting: list[PendingJob] = []
        free_bytes = THREAD_BYTES
        while self._outgoing and free_bytes > 0 and len(waiting) < MESSAGE_JOBS:
            pending = self._outgoing.popleft()
            if pending.future.done():
                continue  # cancelled before it was sent
            pending.sent = True
            waiting.append(pending)
            free_bytes -= job_bytes(pending.job)
        if not (waiting or self._cancelled):
            return None
        jobs = [pending.job for pending in (waiting if len(waiting) < 2 else self._merged(waiting))]
        message = jobs_to_pb(jobs, self._fingerprint)
        message.cancels.extend(self._cancelled)
        self._cancelled.clear()
        return message.SerializeToString()

    def _merged(self, waiting: Sequence[PendingJob]) -> list[PendingJob]:
        """Merges the jobs that may be, as far as a merged job is short, is served in one turn, and its result is small
        enough to be checked here."""
        load = self.load
        most_tokens = min(max(1, load.step_tokens // TURNS_PER_STEP) if load.step_tokens else load.turn, SHORT - 1)
        keys = [
            (
                None if pending.alone else merge_key(pending.job),
                max(pending.job.tokens.total / most_tokens, pending.reply.expected.known_bytes / THREAD_BYTES),
            )
            for pending in waiting
        ]
        groups = [[waiting[place] for place in group] for group in groups_of(keys)]
        return [group[0] if len(group) == 1 else self._merge(group) for group in groups]

    def _merge(self, members: Sequence[PendingJob]) -> PendingJob:
        """Makes one job of several, and waits for its reply."""
        merged = PendingJob(
            job=merged_job([member.job for member in members], next(self._merged_ids)),
            reply=JobReply(merged_reply([member.reply.expected for member in members])),
            future=asyncio.get_running_loop().create_future(),
            came=members[0].came,
            sent=True,
            members=members,
        )
        merged.future.add_done_callback(partial(self._answer_members, merged))
        self._pending[merged.job.id] = merged
        for member in members:
            member.merged = merged
        return merged

    def _answer_members(self, merged: PendingJob, future: "asyncio.Future[JobResult | None]") -> None:
        """Gives each job that was merged its result. Where the merged job failed, each is tried alone, in the time that
        is left: one may be at fault, and the others must lose nothing by it."""
        self._pending.pop(merged.job.id, None)
        if future.cancelled():
            return
        waiting = [member for member in merged.members if not member.future.done()]
        try:
            future.result()
            results = results_of(merged.reply.checked_result(), [member.job for member in merged.members])
        except (DeadlineExceeded, Overloaded, WorkerUnavailable) as error:
            for member in waiting:
                member.future.set_exception(error)
        except (SelvageError, WrongReply):
            now = asyncio.get_running_loop().time()
            for member in waiting:
                member.merged, member.alone, member.sent = None, True, False
                if member.job.remaining is not None:
                    member.job = replace(member.job, remaining=member.job.remaining - (now - member.came))
                    member.came = now
            self._outgoing += waiting
            self._wake.set()
        else:
            for member, result in zip(merged.members, results, strict=True):
                if not member.future.done():
                    member.future.set_result(result)

    async def _listen(self) -> None:
        """Raises WorkerUnavailable once nothing is heard of the worker."""
        await until_stuck(SILENCE, lambda: self._messages)
        raise WorkerUnavailable(f"nothing was heard of it for {SILENCE:g} s", retry_after=1.0)

    async def _read(self) -> None:
        while True:
            raw = await self._call.read()
            self._messages += 1
            if raw is grpc.aio.EOF:
                raise WorkerUnavailable("it ended the link", retry_after=1.0)
            message = self._parse_message(raw)
            if message.HasField("load"):
                before, self.load = self.load, load_from_pb(message.load)
                self._heard = asyncio.get_running_loop().time()
                self._unreported.clear()
                if (before.draining, before.stalled) != (self.load.draining, self.load.stalled):
                    self._on_change()
            for part in message.answers:
                self._add_part(part)

    def _parse_message(self, raw: bytes) -> pb.AttachResponse:
        """Parses a message. A leading piece of a result, if it has one, goes to its job without being copied."""
        split = leading_piece(raw)
        if split is not None:
            piece, behind = split
            pending = self._pending.get(piece.job_id)
            if pending is not None and not pending.future.done():
                try:
                    pending.reply.append(piece.kind, piece.data)
                except (SelvageError, WrongReply) as error:
                    self._fail(pending, error)
            raw = bytes(behind)
        return parse_response(raw)

    def _add_part(self, part: pb.AnswerPart) -> None:
        """Adds a part of a result to its job, which ends with its last part."""
        pending = self._pending.get(part.job_id)
        if pending is None or pending.future.done():
            return  # cancelled meanwhile
        try:
            if pending.reply.add(part):
                pending.future.set_result(None)
        except (SelvageError, WrongReply) as error:
            self._fail(pending, error)

    def _fail(self, pending: PendingJob, error: SelvageError | WrongReply) -> None:
        """Ends a job with the error of a part of its result."""
        pending.future.set_exception(error)
        if isinstance(error, WrongReply | ResultTooLarge):  # what else the worker would send is for nobody
            self._cancel_at_worker(pending)

    def _cancel_at_worker(self, pending: PendingJob) -> None:
        self._cancelled.append(pending.job.id)
        self._wake.set()


def parse_response(raw: bytes) -> pb.AttachResponse:
    """Parses a message of a worker. Raises WrongReply."""
    try:
        return pb.AttachResponse.FromString(raw)
    except DecodeError:
        raise WrongReply("it sent what is no message of the link", f"{len(raw)} bytes") from None


def _given_back(error: SelvageError | WrongReply) -> GivenBack:
    if isinstance(error, WrongReply):
        return GivenBack(str(error), retry_after=1.0)
    return GivenBack(error.message, retry_after=error.retry_after)


def _serialise(fingerprint: str, job: Job) -> bytes:
    return jobs_to_pb([job], fingerprint).SerializeToString()

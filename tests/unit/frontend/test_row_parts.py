"""Token rows of one text on their way through the frontend: whole rows in order, and no more of them than are read."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import fakes
import numpy as np
import pytest
from batches import HERE, Batches
from fake_workers import FakeWorker as LinkedWorker
from fake_workers import World

from frontend_service.api.selvage_v1.batch_stream import BatchStream
from frontend_service.api.selvage_v1.server import EmbeddingServicer
from frontend_service.api.streams.two_way_stream import Replies
from frontend_service.application.frontend import Frontend
from frontend_service.domain.limits import Limits
from frontend_service.services.pipeline import Pipeline
from frontend_service.workers import pending_job, row_parts
from frontend_service.workers.interface import ServedModel
from frontend_service.workers.row_parts import RowPart, RowParts
from selvage.v1.embedding_pb2 import EmbedRequest, EmbedStreamRequest, EmbedStreamResponse
from selvage.worker.v1 import worker_pb2 as pb
from shared.codec.results import UnsentOutcome
from shared.errors import Internal, Overloaded, SelvageError
from shared.jobs import Encode, Job, JobResult, Rows
from shared.ragged import RaggedTokens
from shared.server.calls import Calls
from shared.server.rpc import LINK_VERSION
from shared.vectors import OutputKind
from support.references import eventually

WIDTH, ROW_BYTES = 8, 32
ROWS = Encode(outputs=frozenset({OutputKind.MULTI_VECTOR}), normalize=True, normalize_tokens=True, in_parts=True)
JOB = Job(id=7, work=ROWS, tokens=RaggedTokens.of([[1] * 300]))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten rows; a hundred may wait."""
    monkeypatch.setattr(row_parts, "PART_BYTES", 10 * ROW_BYTES)
    monkeypatch.setattr(row_parts, "HELD_BYTES", 100 * ROW_BYTES)


@pytest.mark.parametrize("seed", range(5))
async def test_bytes_that_are_cut_anywhere_become_whole_rows(seed: int) -> None:
    """With the scale and the id of each, in whatever order these come."""
    chance, parts, count = random.Random(seed), RowParts(5, scale_bytes=4, id_bytes=4), 200
    whole = {name: chance.randbytes(width * count) for name, width in (("data", 5), ("scales", 4), ("ids", 4))}
    left, taken = dict(whole), list[RowPart]()

    async def put() -> None:
        while left:
            name, size = chance.choice(sorted(left)), chance.randint(0, 60)
            parts.put(**{name: left[name][:size]})
            left[name] = left[name][size:]
            if not left[name]:
                del left[name]
            await asyncio.sleep(0)
        parts.end()

    putting = asyncio.create_task(put())
    while (part := await parts.take()) is not None:
        assert part.count == 320 // 13
        taken.append(part)
    taken.append(parts.take_rest())
    await putting
    assert sum(part.count for part in taken) == count
    for name, expected in whole.items():
        assert b"".join(getattr(part, name) for part in taken) == expected
    assert parts.held == 0


async def test_too_many_bytes_are_told_once_and_again_when_half_are_taken() -> None:
    """So that a reader who takes a part does not wake the worker for one more."""
    parts, told = RowParts(ROW_BYTES), list[bool]()
    parts.on_full = told.append
    for _ in range(10):
        parts.put(bytes(10 * ROW_BYTES))
    assert told == []
    parts.put(bytes(10 * ROW_BYTES))
    parts.put(bytes(10 * ROW_BYTES))
    assert told == [True]
    for _ in range(6):
        await parts.take()
    assert told == [True]
    await parts.take()
    assert told == [True, False]


def rows_of(job: Job) -> np.ndarray:
    """A row a token, which tells its place and its token."""
    ids = np.frombuffer(job.tokens.ids, dtype="<i4")
    return np.stack([np.arange(len(ids)), ids] * 4, axis=1).astype("<f4")


class RowWorker(fakes.FakeWorker):
    """Sends 7 rows at a time; after `half` of them it waits for `go`, then it ends with `error` if there is one."""

    def __init__(self, error: SelvageError | None = None, *, chunk_tokens: int = 100) -> None:
        super().__init__(fakes.card(max_tokens=10_000, chunk_tokens=chunk_tokens))
        self.error, self.go = error, asyncio.Event()

    async def run(self, model: ServedModel, job: Job) -> JobResult:
        self.jobs.append(job)
        return JobResult(tokens=Rows(dimensions=WIDTH, data=rows_of(job).tobytes()), row_lengths=job.tokens.lengths)

    async def run_in_parts(self, model: ServedModel, job: Job, parts: RowParts) -> JobResult:
        self.jobs.append(job)
        rows = rows_of(job)
        for start in range(0, len(rows), 7):
            if start >= len(rows) // 2:
                await self.go.wait()
                if self.error is not None:
                    raise self.error
            parts.put(rows[start : start + 7].tobytes())
            await asyncio.sleep(0)
        return JobResult(tokens=Rows(dimensions=WIDTH, data=b""), row_lengths=job.tokens.lengths, compute=2.0)


def batch(identity: int, *texts: int, **options: Any) -> EmbedStreamRequest:
    """Texts of so many words."""
    request = EmbedRequest(texts=[" ".join("abcde"[number % 5] for number in range(text)) for text in texts])
    request.outputs.append(3)
    return EmbedStreamRequest(id=identity, request=request, **({"rows_in_parts": True} | options))


class OpenBatches(Batches):
    """Batches of a caller that does not close its side."""

    async def __anext__(self) -> EmbedStreamRequest:
        try:
            return await super().__anext__()
        except StopAsyncIteration:
            return await asyncio.get_running_loop().create_future()


async def replies_to(
    worker: RowWorker,
    *batches: EmbedStreamRequest,
    on_reply: Callable[[EmbedStreamResponse], Awaitable[None]] | None = None,
    calls: Calls | None = None,
    reserve: Callable[[int], None] | None = None,
    stays_open: bool = False,
) -> list[EmbedStreamResponse]:
    """All replies; a message has a little over 64 KiB at most. The worker goes on after the first one."""
    threads = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
    pipeline = Pipeline(worker, Limits(message_bytes=70_000), *threads, reserve=reserve)
    frontend = Frontend(pipeline, calls or Calls(timeout=60))
    servicer, replies = EmbeddingServicer(frontend), list[EmbedStreamResponse]()

    async def write(raw: bytes) -> None:
        replies.append(EmbedStreamResponse.FromString(raw))
        worker.go.set()
        if on_reply is not None:
            await on_reply(replies[-1])

    embed = partial(servicer._answer_message, servicer._embed)
    with frontend.calls.stream(HERE) as stream:
        to_caller = Replies(write, lambda _: None)
        requests = (OpenBatches if stays_open else Batches)(*batches)
        await BatchStream(frontend, embed, servicer._embed_in_parts, HERE, stream, to_caller).run(requests)
    return replies


def rows_in(reply: EmbedStreamResponse) -> np.ndarray:
    vectors = reply.response.multi_vector
    assert len(vectors.lengths) == 1
    return np.frombuffer(vectors.data, dtype="<f4").reshape(vectors.lengths[0], vectors.dimensions)


async def test_rows_come_before_the_text_is_done() -> None:
    """In order, each once; the last reply has the usage and the times. The worker waits here for the first reply."""
    worker = RowWorker()
    replies = await replies_to(worker, batch(7, 598))
    assert len(replies) > 30
    assert [reply.more for reply in replies] == [True] * (len(replies) - 1) + [False]
    assert {(reply.id, reply.start) for reply in replies} == {(7, 0)}
    counts = [len(rows_in(reply)) for reply in replies]
    assert [reply.first_row for reply in replies] == np.cumsum([0, *counts[:-1]]).tolist()
    [job] = worker.jobs
    assert np.array_equal(np.concatenate([rows_in(reply) for reply in replies]), rows_of(job))
    assert all(not reply.response.usage.token_counts for reply in replies[:-1])
    assert list(replies[-1].response.usage.token_counts) == [600]
    assert replies[-1].response.timing.compute.seconds == 2


async def test_a_text_of_any_length_comes_among_others() -> None:
    """A batch that is too large is halved until a text is left; each text's rows come behind those before it."""
    worker = RowWorker()
    replies = await replies_to(worker, batch(7, 100, 2000, 3))
    found: dict[int, list[np.ndarray]] = {}
    for reply in replies:
        if len(reply.response.multi_vector.lengths) == 1:
            found.setdefault(reply.start, []).append(rows_in(reply))
    assert [reply.start for reply in replies] == sorted(reply.start for reply in replies)
    assert len(np.concatenate(found[1])) == 2002
    assert not replies[-1].more
    assert all(reply.more for reply in replies[:-1])


@pytest.mark.parametrize("error", [Internal("it broke"), Overloaded("too much", retry_after=1.0)])
async def test_an_error_after_some_rows_ends_the_batch(error: SelvageError) -> None:
    """It is not computed again, since rows would come twice; another batch is answered."""
    worker = RowWorker(error)
    replies = await replies_to(worker, batch(7, 598), batch(8, 5, 6))
    ours = [reply for reply in replies if reply.id == 7]
    assert len(ours) > 10
    assert all(reply.more for reply in ours[:-1])
    assert (ours[-1].error.reason, ours[-1].more) == (error.reason, False)
    assert len(worker.jobs) == 2
    assert [reply.WhichOneof("outcome") for reply in replies if reply.id == 8] == ["response"]


async def test_who_does_not_ask_for_parts_is_refused_before_anything_is_computed() -> None:
    """With the limit, and what would help; over unary calls and streams alike."""
    worker = RowWorker()
    [reply] = await replies_to(worker, batch(7, 5000, rows_in_parts=False))
    assert reply.error.reason == "RESULT_TOO_LARGE"
    assert "at most 70000" in reply.error.message
    assert "EmbedStream" in reply.error.message
    assert worker.jobs == []


async def test_a_reader_that_takes_nothing_holds_up_the_worker() -> None:
    """The rows that wait are bounded; those that are read make room for others."""
    worker, held, may_read = RowWorker(), list[int](), asyncio.Event()
    run = worker.run_in_parts

    async def watched(model: ServedModel, job: Job, parts: RowParts) -> JobResult:
        gate = asyncio.Event()
        gate.set()
        parts.on_full = lambda full: gate.clear() if full else gate.set()
        put = parts.put

        async def wait() -> None:
            held.append(parts.held)
            if not gate.is_set():
                may_read.set()
            await gate.wait()

        for start in range(0, len(rows_of(job)), 7):
            await wait()
            put(rows_of(job)[start : start + 7].tobytes())
        return await run(model, replace(job, tokens=type(job.tokens)(ids=b"", lengths=())), parts)

    worker.run_in_parts = watched  # type: ignore[method-assign]

    async def wait_for_full(_: EmbedStreamResponse) -> None:
        await may_read.wait()

    replies = await replies_to(worker, batch(7, 998), on_reply=wait_for_full)
    assert sum(len(rows_in(reply)) for reply in replies) == 1000
    assert 100 * ROW_BYTES < max(held) <= 107 * ROW_BYTES


class PartedWorker(LinkedWorker):
    """Sends parts of a job of 300 rows as long as it is not paused, then the end.

    `whole`: all rows at once; `pauses`: not the last hundred before it has been paused.
    """

    def __init__(
        self, error: SelvageError | None = None, *, whole: bool = False, pauses: bool = False, chunk_tokens: int = 0
    ) -> None:
        super().__init__(chunk_tokens=chunk_tokens)
        self.error, self.whole = error, whole
        self.was_paused = asyncio.Event()
        if not pauses:
            self.was_paused.set()
        self.sent = 0
        self.may_send = asyncio.Event()
        self.may_send.set()

    async def Attach(self, requests: AsyncIterator[pb.AttachRequest], context: Any) -> None:
        await anext(requests)
        await context.write(pb.AttachResponse(welcome=pb.Welcome(version=LINK_VERSION)))
        sending = list[asyncio.Task[None]]()
        async for request in requests:
            self.messages.append(request)
            if request.pauses:
                self.may_send.clear()
                self.was_paused.set()
            if request.resumes:
                self.may_send.set()
            sending += [asyncio.create_task(self._send(job.id, context)) for job in request.jobs]

    async def _send(self, job: int, context: Any) -> None:
        step = 300 if self.whole else 5
        for start in range(0, 300, step):
            if start >= 200:
                await self.was_paused.wait()
            await self.may_send.wait()
            rows = Rows(dimensions=WIDTH, data=bytes([start % 251]) * ROW_BYTES * step)
            message = pb.AttachResponse()
            UnsentOutcome(job, JobResult(tokens=rows), more=True).add_part(message, 1 << 20)
            await context.write(message)
            self.sent += step
        message = pb.AttachResponse()
        rows = Rows(dimensions=WIDTH, data=b"")
        UnsentOutcome(job, self.error or JobResult(tokens=rows, row_lengths=(300,))).add_part(message, 1 << 20)
        await context.write(message)


async def test_a_worker_is_paused_while_nobody_reads_and_resumed_when_somebody_does() -> None:
    """By messages of the link, so that the jobs of others go on."""
    async with World(PartedWorker(pauses=True)) as world:
        await world.until(True)
        [worker], parts = world.workers, RowParts(ROW_BYTES)
        assert isinstance(worker, PartedWorker)
        running = asyncio.create_task(world.fleet.run_in_parts(world.fleet.model(""), JOB, parts))
        await eventually(lambda: any(message.pauses for message in worker.messages))
        assert not running.done()
        taken = 0
        running.add_done_callback(lambda _: parts.end())
        while (part := await parts.take()) is not None:
            taken += part.count
        assert taken + parts.take_rest().count == 300
        result = await running
        assert (result.row_lengths, parts.held) == ((300,), 0)
        resumed = [message for message in worker.messages if message.resumes]
        assert resumed
        assert list(resumed[0].resumes) == [JOB.id]


async def test_a_worker_that_knows_no_parts_is_understood() -> None:
    """It sends all rows when the text is done."""
    async with World(PartedWorker(whole=True)) as world:
        await world.until(True)
        parts = RowParts(ROW_BYTES)
        await world.fleet.run_in_parts(world.fleet.model(""), JOB, parts)
        parts.end()
        counts = [part.count async for part in _all_of(parts)]
        assert sum(counts) == 300


async def test_a_worker_that_goes_on_when_it_is_asked_to_pause_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a text of any length would be held, though nobody reads it: what was on its way has a bound."""
    monkeypatch.setattr(pending_job, "UNREAD_BYTES", 20 * ROW_BYTES)
    async with World(PartedWorker(whole=True, chunk_tokens=10)) as world:
        await world.until(True)
        parts = RowParts(ROW_BYTES)
        with pytest.raises(Internal, match="it went on with a job that it was asked to pause"):
            await world.fleet.run_in_parts(world.fleet.model(""), JOB, parts)


async def test_rows_that_came_before_an_error_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the job's own."""
    monkeypatch.setattr(row_parts, "HELD_BYTES", 1 << 20)
    async with World(PartedWorker(Internal("it broke"))) as world:
        await world.until(True)
        parts = RowParts(ROW_BYTES * 100)
        with pytest.raises(Internal, match="it broke"):
            await world.fleet.run_in_parts(world.fleet.model(""), JOB, parts)
        assert parts.held == 300 * ROW_BYTES


async def _all_of(parts: RowParts) -> AsyncIterator[RowPart]:
    while (part := await parts.take()) is not None:
        yield part
    yield parts.take_rest()

"""Jobs that leave together as one: everybody gets what they would get alone."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace

import fakes
import numpy as np
import pytest

from frontend_service.domain.limits import expected_reply
from frontend_service.workers.job_stream import PACE, JobStream
from selvage.worker.v1 import worker_pb2 as pb
from shared.errors import DeadlineExceeded, Internal, Overloaded, SelvageError
from shared.jobs import Encode, Job, JobResult, MaxSim, Priority, RaggedTokens, Rows, TokenRanges
from shared.link_codec import UnsentOutcome, jobs_from_pb, load_to_pb
from shared.load import Load
from shared.vectors import DataType, Layout, MultiVectors, OutputKind
from support.clockwork import in_no_time

WIDTH, TURN, POISON = 4, 64, 666
ROW = MultiVectors(data_type=DataType.FLOAT32, dimensions=1, lengths=(1,), data=bytes(4))
MAX_SIM = MaxSim(queries=ROW, documents=ROW, layout=Layout.MATRIX, unit_rows=True, mean=False)
PLAIN = Encode(outputs=frozenset({OutputKind.DENSE}), normalize=True, normalize_tokens=True, dimensions=WIDTH)


def result_of(job: Job) -> JobResult:
    """A row tells the ids of its sequence, and what is said of it; a job without tokens gets one score."""
    if not isinstance(job.work, Encode):
        return JobResult(scores=bytes(4))
    nothing = (0,) * len(job.tokens)
    sequences = np.split(np.frombuffer(job.tokens.ids, dtype="<i4"), job.tokens.offsets[1:-1])
    columns = (job.prompt_lengths or nothing, job.unattended_tails or nothing)
    rows = np.array([[ids.sum(), len(ids), *more] for ids, *more in zip(sequences, *columns, strict=True)])
    int8 = job.work.data_type is DataType.INT8
    packed = (rows % 100).astype(np.int8 if int8 else "<f4")
    scales = rows[:, 0].astype("<f4").tobytes() if int8 else b""
    dense = Rows(dimensions=WIDTH, data=packed.tobytes(), scales=scales)
    if OutputKind.MULTI_VECTOR not in job.work.outputs:
        return JobResult(dense=dense)
    token_rows = Rows(dimensions=WIDTH, data=bytes(4 * WIDTH * job.tokens.total))
    return JobResult(dense=dense, tokens=token_rows, row_lengths=job.tokens.lengths)


class Worker:
    """The worker's end of a stream: answers each job by `answer`, or never while that is None. `jobs`: by message."""

    seconds = 0.0

    def __init__(self, answer: Callable[[Job], JobResult | SelvageError] | None) -> None:
        self._answer, self._replies = answer, asyncio.Queue[bytes]()
        self.jobs: list[list[Job]] = []
        self.cancels: list[int] = []
        self._replies.put_nowait(pb.AttachResponse(load=load_to_pb(Load(turn=TURN))).SerializeToString())

    async def write(self, raw: bytes) -> None:
        message, reply = pb.AttachRequest.FromString(raw), pb.AttachResponse()
        jobs = [job for _, job in jobs_from_pb(message) if isinstance(job, Job)]
        self.jobs.append(jobs)
        self.cancels += message.cancels
        if self._answer is not None and jobs:
            for job in jobs:
                UnsentOutcome(job.id, self._answer(job)).add_part(reply, 1 << 20)
            asyncio.get_running_loop().call_later(self.seconds, self._replies.put_nowait, reply.SerializeToString())

    async def read(self) -> bytes:
        return await self._replies.get()


@asynccontextmanager
async def attached(worker: Worker) -> AsyncIterator[JobStream]:
    stream = JobStream(worker, "a fingerprint", ThreadPoolExecutor(1), lambda: None)
    serving = asyncio.create_task(stream.serve())
    await asyncio.sleep(10 * PACE)  # it has heard the load
    yield stream
    serving.cancel()


def start(stream: JobStream, job: Job) -> "asyncio.Task[JobResult]":
    assert not isinstance(job.work, str)
    return asyncio.create_task(stream.run(job, expected_reply(job.work, job.tokens, fakes.card(), job.ranges)))


def jobs_of(count: int, *lengths: int) -> list[Job]:
    """So many jobs, each of one sequence of each length, with ids that tell the jobs apart."""
    return [
        Job(id=number, work=PLAIN, tokens=RaggedTokens.of([[number] * length for length in lengths]), remaining=60.0)
        for number in range(1, count + 1)
    ]


def drawn(chance: random.Random, number: int) -> Job:
    lengths = [chance.randint(1, 9) for _ in range(chance.randint(1, 4))]
    work = replace(PLAIN, data_type=chance.choice([DataType.FLOAT32, DataType.FLOAT32, DataType.INT8]))
    job = Job(
        id=number,
        work=work,
        tokens=RaggedTokens.of([[chance.randint(1, 600)] * length for length in lengths]),
        priority=chance.choice([Priority.DEFAULT, Priority.DEFAULT, Priority.BULK]),
        key=chance.choice(["one", "one", "another"]),
        model=chance.choice(["", "", "an adapter"]),
        remaining=chance.choice([None, 60.0]),
        prompt_lengths=tuple(length - 1 for length in lengths) if chance.random() < 0.2 else (),
        unattended_tails=tuple(length // 2 for length in lengths) if chance.random() < 0.2 else (),
    )
    kind = chance.random()
    if kind < 0.05:
        return replace(job, work=replace(PLAIN, outputs=frozenset({OutputKind.DENSE, OutputKind.MULTI_VECTOR})))
    if kind < 0.1:
        return Job(id=number, work=MAX_SIM)
    return job


@pytest.mark.parametrize("seed", range(20))
@in_no_time
async def test_every_job_gets_its_own_result(seed: int) -> None:
    """And no job is merged with one of another key, priority, model or format; nor more than a turn's tokens."""
    chance = random.Random(seed)
    jobs = [drawn(chance, number) for number in range(1, chance.randint(2, 60))]
    worker = Worker(result_of)
    async with attached(worker) as stream:
        results = await asyncio.gather(*(start(stream, job) for job in jobs))
    for job, result in zip(jobs, results, strict=True):
        assert replace(result, queue=0.0, compute=0.0) == result_of(job)
    sent = [job for message in worker.jobs for job in message]
    assert sorted(_texts(sent)) == sorted(_texts(jobs))
    assert all(job.tokens.total <= max(TURN, 4 * 9) for job in sent)
    assert len(sent) < len(jobs) or len(jobs) < 12


def _texts(jobs: list[Job]) -> list[tuple[object, ...]]:
    """Each sequence with what must not change by a merge."""
    return [
        (job.key, int(job.priority), job.model, job.work.data_type, length)
        for job in jobs
        for length in job.tokens.lengths
        if isinstance(job.work, Encode)
    ]


@in_no_time
async def test_jobs_of_about_one_deadline_are_merged() -> None:
    """The merged job's is the latest; jobs with other deadlines, or with none, stay apart."""
    worker = Worker(result_of)
    async with attached(worker) as stream:
        jobs = [
            replace(job, remaining=time)
            for job, time in zip(jobs_of(6, 2), [5.0, 1.0, 5.2, None, 4.9, None], strict=True)
        ]
        await asyncio.gather(*(start(stream, job) for job in jobs))
    assert [(len(job.tokens), job.remaining) for job in worker.jobs[0]] == [(3, 5.2), (1, 1.0), (2, None)]


@in_no_time
async def test_large_results_are_not_merged() -> None:
    """They would be checked on the event loop."""
    wide = replace(PLAIN, dimensions=1 << 16)
    worker = Worker(None)
    async with attached(worker) as stream:
        waiting = [start(stream, replace(job, work=wide)) for job in jobs_of(9, 1)]
        await asyncio.sleep(1)
        for task in waiting:
            task.cancel()
    assert [len(job.tokens) for job in worker.jobs[0]] == [4, 4, 1]


@in_no_time
async def test_a_traced_job_and_one_with_ranges_stay_alone() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    first, second, third, fourth = jobs_of(4, 3)
    ranges = TokenRanges(counts=(1,), starts=(0,), stops=(2,))
    worker = Worker(result_of)
    async with attached(worker) as stream:
        jobs = [first, replace(second, traceparent=trace), replace(third, ranges=ranges), fourth]
        await asyncio.gather(*(start(stream, job) for job in jobs))
    assert [(len(job.tokens), job.traceparent, job.ranges) for job in worker.jobs[0]] == [
        (2, "", None),
        (1, trace, None),
        (1, "", ranges),
    ]


@in_no_time
async def test_others_lose_nothing_by_a_job_that_fails() -> None:
    jobs = [*jobs_of(5, 2), Job(id=9, work=PLAIN, tokens=RaggedTokens.of([[POISON]]), remaining=60.0)]
    poison = np.array([POISON], dtype="<i4").tobytes()
    worker = Worker(lambda job: Internal("it failed") if poison in job.tokens.ids else result_of(job))
    worker.seconds = 3.0
    async with attached(worker) as stream:
        results = await asyncio.gather(*(start(stream, job) for job in jobs), return_exceptions=True)
    assert isinstance(results.pop(), Internal)
    assert [result.dense for result in results if isinstance(result, JobResult)] == [
        result_of(job).dense for job in jobs[:-1]
    ]
    assert [[job.remaining for job in message] for message in worker.jobs] == [[60.0], [57.0] * 6]


@pytest.mark.parametrize("error", [Overloaded("too much waits", retry_after=2.0), DeadlineExceeded("it is late")])
@in_no_time
async def test_a_refusal_is_everybodys(error: SelvageError) -> None:
    """None of them is sent again."""
    worker = Worker(lambda job: error)
    async with attached(worker) as stream:
        results = await asyncio.gather(*(start(stream, job) for job in jobs_of(3, 2)), return_exceptions=True)
    assert [type(result) for result in results] == [type(error)] * 3
    assert len(worker.jobs) == 1


@in_no_time
async def test_a_merged_job_is_cancelled_with_the_last_of_its_jobs() -> None:
    worker = Worker(None)
    async with attached(worker) as stream:
        first, second = (start(stream, job) for job in jobs_of(2, 2))
        await asyncio.sleep(1)
        first.cancel()
        await asyncio.sleep(1)
        assert worker.cancels == []
        second.cancel()
        await asyncio.sleep(1)
        (merged,) = worker.jobs[0]
        assert worker.cancels == [merged.id]
        assert not stream._pending


@in_no_time
async def test_messages_keep_their_pace() -> None:
    """A lone caller's job leaves at once; those that come right behind it wait for the pace, and leave together."""
    clock, times = asyncio.get_running_loop().time, list[float]()
    worker = Worker(None)
    write = worker.write

    async def timed(raw: bytes) -> None:
        times.append(clock())
        await write(raw)

    worker.write = timed  # type: ignore[method-assign]
    async with attached(worker) as stream:
        began = clock()
        waiting = [start(stream, job) for job in jobs_of(1, 2)]
        for job in jobs_of(4, 2)[1:]:
            await asyncio.sleep(PACE / 10)
            waiting.append(start(stream, job))
        await asyncio.sleep(1)
        for task in waiting:
            task.cancel()
    assert times[:2] == [began, pytest.approx(began + PACE)]
    assert [len(job.tokens) for job in (*worker.jobs[0], *worker.jobs[1])] == [1, 3]

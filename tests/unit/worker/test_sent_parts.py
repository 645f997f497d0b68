"""Parts of a job's result on their way to a frontend: in order, in small messages, and no more than it takes."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gpu_worker.link.attachment import Attachment
from gpu_worker.link.outbox import Outbox
from gpu_worker.link.unsent import UnsentLimit
from selvage.worker.v1 import worker_pb2 as pb
from shared.codec.jobs import jobs_to_pb
from shared.codec.leading_piece import leading_piece
from shared.codec.results import ResultAssembly
from shared.errors import Internal, SelvageError
from shared.jobs import Classify, Job, JobResult, Rows
from shared.load import Load
from shared.ragged import RaggedTokens
from support.references import eventually

MEBIBYTE = 1024 * 1024
MODEL = "a fingerprint"


class FakeJobs:
    """Knows which jobs are set aside, and what takes the parts of each."""

    def __init__(self) -> None:
        self.load = Load()
        self.parts: dict[int, Callable[[JobResult], None]] = {}
        self.aside: set[int] = set()

    @property
    def idle(self) -> bool:
        return False

    def submit(self, job: Job, on_outcome: Any, on_part: Any, *, wake: bool = True) -> None:
        self.parts[job.id] = on_part

    def wake(self) -> None:
        """Nothing is computed here."""

    def cancel(self, ids: Iterable[int]) -> None:
        self.aside -= set(ids)

    def set_aside(self, ids: Iterable[int]) -> None:
        self.aside |= set(ids)

    def bring_back(self, ids: Iterable[int]) -> None:
        self.aside -= set(ids)


def part_of(size: int, fill: int, end: bool = False) -> JobResult:
    """Rows of `size` bytes in all, four a row, each with a token id."""
    rows = Rows(dimensions=1, data=bytes([fill]) * size)
    return JobResult(tokens=rows, token_ids=bytes([fill]) * size, row_lengths=(9,) if end else ())


async def received(outbox: Outbox) -> tuple[dict[int, ResultAssembly], dict[int, SelvageError], int]:
    """What a frontend that knows nothing of parts makes of all messages, and the size of the largest."""
    found, errors, largest = defaultdict[int, ResultAssembly](ResultAssembly), dict[int, SelvageError](), 0
    while not outbox.empty:
        raw = await outbox.next_message()
        largest = max(largest, len(raw))
        piece, rest = leading_piece(raw) or (None, memoryview(raw))
        if piece is not None:
            found[piece.job_id].append(piece.kind, piece.data)
        for answer in pb.AttachResponse.FromString(bytes(rest)).answers:
            assert found[answer.job_id].end is None
            try:
                found[answer.job_id].add(answer)
            except SelvageError as error:
                errors[answer.job_id] = error
    return found, errors, largest


@pytest.mark.parametrize("seed", range(5))
async def test_the_parts_of_a_job_come_in_order(seed: int) -> None:
    """Small and large ones, between those of other jobs; together they are one result."""
    chance = random.Random(seed)
    sizes = [[4 * chance.choice([0, 1, 100, 30_000, 400_000]) for _ in range(chance.randint(1, 6))] for _ in range(5)]
    outbox = Outbox(Load)
    waiting = [(job, number) for number in range(6) for job in range(5) if number < len(sizes[job])]
    for job, number in waiting:
        last = number == len(sizes[job]) - 1
        outbox.add_outcome(job, part_of(sizes[job][number], number, end=last), more=not last)
    found, errors, largest = await received(outbox)
    assert (errors, outbox.unsent, largest <= MEBIBYTE) == ({}, 0, True)
    for job in range(5):
        expected = b"".join(bytes([number]) * size for number, size in enumerate(sizes[job]))
        result = found[job].result()
        assert result.tokens is not None
        assert (result.tokens.data, result.token_ids, result.row_lengths) == (expected, expected, (9,))


@pytest.mark.parametrize("sizes", [(40, MEBIBYTE), (MEBIBYTE, 40, MEBIBYTE, 40), (40, 40, 4 * MEBIBYTE)])
async def test_a_large_part_does_not_overtake_a_small_one(sizes: tuple[int, ...]) -> None:
    """Though a piece of a large outcome stands at the head of a message."""
    outbox = Outbox(Load)
    for number, size in enumerate(sizes):
        outbox.add_outcome(1, part_of(size, number, end=number == len(sizes) - 1), more=number < len(sizes) - 1)
    found, _, _ = await received(outbox)
    rows = found[1].result().tokens
    assert rows is not None
    assert rows.data == b"".join(bytes([number]) * size for number, size in enumerate(sizes))


async def test_an_error_comes_behind_the_rows_before_it() -> None:
    """And ends the job."""
    outbox = Outbox(Load)
    outbox.add_outcome(1, part_of(3 * MEBIBYTE, 1), more=True)
    outbox.add_outcome(1, Internal("it broke"))
    found, errors, _ = await received(outbox)
    assert found[1].size == 6 * MEBIBYTE
    assert (errors[1].message, outbox.unsent) == ("it broke", 0)


class Attached:
    """A frontend that reads nothing, with three jobs in parts."""

    def __init__(self) -> None:
        self.jobs, self.limit = FakeJobs(), UnsentLimit(10 * MEBIBYTE)
        self.attachment = Attachment(self.jobs, MODEL, ThreadPoolExecutor(1), self.limit, log_jobs=False)

    async def tell(self, **fields: list[int]) -> None:
        await self.attachment.receive(pb.AttachRequest(fingerprint=MODEL, **fields), 0)

    async def ask(self) -> None:
        jobs = [Job(id=number, work=Classify(), tokens=RaggedTokens.of([[1]])) for number in (1, 2, 3)]
        await self.attachment.receive(jobs_to_pb(jobs, MODEL), 0)

    def send_part(self, job: int, size: int) -> None:
        self.jobs.parts[job](part_of(size, 1))

    async def read(self) -> None:
        async def write(_: bytes) -> None:
            pass

        sending = asyncio.create_task(self.attachment.send(write))
        await eventually(lambda: not self.limit.total and self.attachment._may_receive.is_set())
        sending.cancel()


async def test_a_job_is_set_aside_while_its_reader_takes_nothing() -> None:
    """Others go on; ids that nobody knows do no harm."""
    frontend = Attached()
    await frontend.ask()
    await frontend.tell(pauses=[2, 77])
    assert frontend.jobs.aside == {2}
    await frontend.tell(resumes=[2, 3, 77])
    assert frontend.jobs.aside == set()


async def test_parts_count_as_unsent() -> None:
    """Above the bound nothing more is computed for the frontend, and a paused job stays paused when it has read."""
    frontend = Attached()
    await frontend.ask()
    await frontend.tell(pauses=[2])
    frontend.send_part(1, 4 * MEBIBYTE)
    assert frontend.jobs.aside == {2}
    frontend.send_part(1, 4 * MEBIBYTE)
    assert frontend.jobs.aside == {1, 2, 3}
    await frontend.tell(pauses=[3], resumes=[2])
    assert frontend.jobs.aside == {1, 2, 3}
    await frontend.read()
    assert frontend.jobs.aside == {3}


async def test_parts_of_a_cancelled_job_are_dropped() -> None:
    """But for the one that is being sent."""
    frontend = Attached()
    await frontend.ask()
    for _ in range(3):
        frontend.send_part(1, MEBIBYTE)
    await frontend.tell(cancels=[1])
    assert MEBIBYTE < frontend.limit.total < 3 * MEBIBYTE
    await frontend.read()

"""When frontends are told a worker's load: its outcomes carry it, and between these it comes at set times."""

import asyncio

from gpu_worker.link.attachment import Attachment
from gpu_worker.link.outbox import IDLE_BEAT, Outbox, Outboxes
from gpu_worker.schedule.load import RECENT_SECONDS
from selvage.worker.v1 import worker_pb2 as pb
from shared.codec.jobs import jobs_to_pb
from shared.codec.load import load_from_pb
from shared.jobs import Classify, Job, JobResult
from shared.load import REPORT_SECONDS, Load
from shared.ragged import RaggedTokens
from support.clockwork import in_no_time
from support.held_jobs import MODEL, HeldJobs, attached


async def seconds_to_report(outbox: Outbox) -> float:
    clock = asyncio.get_running_loop().time
    start = clock()
    await outbox.next_message()
    return round(clock() - start, 6)


@in_no_time
async def test_a_worker_without_work_tells_it_once_a_second() -> None:
    assert await seconds_to_report(Outbox(Load)) == IDLE_BEAT


@in_no_time
async def test_a_worker_with_work_tells_its_load_more_often() -> None:
    assert await seconds_to_report(Outbox(lambda: Load(queued_jobs=1))) == REPORT_SECONDS


@in_no_time
async def test_a_worker_that_has_work_again_tells_it_soon() -> None:
    """Frontends that believe it idle would all send their jobs there. Further jobs put the report off no further."""
    outbox = Outbox(Load)
    reporting = asyncio.create_task(seconds_to_report(outbox))
    await asyncio.sleep(0.5)
    outbox.hasten_report()
    await asyncio.sleep(0.05)
    outbox.hasten_report()
    assert await reporting == round(0.5 + REPORT_SECONDS, 6)


@in_no_time
async def test_a_report_that_is_due_sooner_stays_so() -> None:
    outbox = Outbox(Load)
    reporting = asyncio.create_task(seconds_to_report(outbox))
    await asyncio.sleep(IDLE_BEAT - 0.01)
    outbox.hasten_report()
    assert await reporting == IDLE_BEAT


class Counted(Outbox):
    """Another frontend's, which counts how often it is told to report soon."""

    hastened = 0

    def hasten_report(self) -> None:
        self.hastened += 1


async def test_the_first_job_of_an_idle_worker_is_told_to_all() -> None:
    """The jobs after it are not: the report that is on its way counts them too."""
    outboxes, jobs = Outboxes(1 << 30), HeldJobs()
    attachment, reporting = attached(jobs, outboxes), Counted(Load)
    outboxes.add(reporting)

    async def send(*ids: int) -> None:
        message = jobs_to_pb([Job(id=number, work=Classify(), tokens=RaggedTokens.of([[1]])) for number in ids], MODEL)
        await attachment.receive(message, message.ByteSize())

    await send(1, 2)
    await send(3)
    assert reporting.hastened == 1
    for number in (1, 2, 3):
        jobs.answer(number, 1000)
    await send(4)
    assert reporting.hastened == 2


@in_no_time
async def test_reports_tell_what_others_lately_sent() -> None:
    """Of a thousand tokens a second half a second's are half. One's own work is not others', and what came long ago
    counts no more."""
    jobs, outboxes = HeldJobs(), Outboxes(1 << 30)
    jobs.load = Load(tokens_per_second=1000.0)
    lone, other = attached(jobs, outboxes), attached(jobs, outboxes)

    async def send(attachment: Attachment, number: int) -> None:
        job = Job(id=number, work=Classify(), tokens=RaggedTokens.of([[1] * 500]))
        message = jobs_to_pb([job], MODEL)
        await attachment.receive(message, message.ByteSize())

    assert await told(other) == 0.0
    await send(lone, 1)
    assert await told(lone) == 0.0
    assert await told(other) == 0.5
    for number in range(2, 9):
        await send(lone, number)
    assert await told(other) == 1.0
    await asyncio.sleep(20 * RECENT_SECONDS)
    assert await told(other) < 1e-6


async def told(attachment: Attachment) -> float:
    """What the next message to a frontend says of others."""
    written: asyncio.Queue[bytes] = asyncio.Queue()
    attachment._outbox.add_outcome(1, JobResult(scores=b"1234"))
    sending = asyncio.create_task(attachment.send(written.put))
    message = pb.AttachResponse.FromString(await written.get())
    sending.cancel()
    return load_from_pb(message.load).others

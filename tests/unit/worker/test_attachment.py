"""What frontends are sent and when, what is said of them in the log, and those that do not read their answers."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from structlog.testing import capture_logs

from gpu_worker.link import attachment, outbox
from gpu_worker.link.attachment import Attachment, FrontendLog
from gpu_worker.link.outbox import IDLE_BEAT, Outbox, Outboxes
from gpu_worker.schedule.load import RECENT_SECONDS
from selvage.worker.v1 import worker_pb2 as pb
from shared.errors import InvalidInput
from shared.jobs import NO_TOKENS, Classify, Job, JobResult, RaggedTokens
from shared.link_codec import jobs_to_pb, load_from_pb
from shared.load import REPORT_SECONDS, Load
from support.clockwork import in_no_time
from support.held_jobs import MODEL, HeldJobs, attached
from support.references import eventually


class Frontend:
    """Attached, with a reader that reads when it is told to."""

    def __init__(self, jobs: HeldJobs, everything: Outboxes, first_id: int) -> None:
        self.jobs, self._next = jobs, first_id
        self.attachment = attached(jobs, everything)
        self.received = 0

    async def ask(self) -> int:
        """The id of a new job that the worker has taken."""
        self._next += 1
        job = Job(id=self._next, work=Classify(), tokens=RaggedTokens.of([[1]]))
        message = pb.AttachRequest.FromString(jobs_to_pb([job], MODEL).SerializeToString())
        await self.attachment.receive(message, message.ByteSize())
        return self._next

    async def leaves(self, size: int) -> int:
        """A job that is answered with so many bytes, which nobody reads; and the id of one that goes on waiting."""
        waiting, answered = await self.ask(), await self.ask()
        self.jobs.answer(answered, size)
        return waiting

    async def read(self) -> None:
        async def write(message: bytes) -> None:
            self.received += len(message)

        sending = asyncio.create_task(self.attachment.send(write))
        await eventually(lambda: self.attachment._outbox.empty and not self.attachment._writing)
        sending.cancel()


async def test_a_drain_waits_for_jobs_that_are_being_read() -> None:
    """A large message is read in a thread; its jobs are answered before the worker ends."""
    jobs, read = HeldJobs(), asyncio.Event()
    held = attached(jobs)

    async def offload(threads: object, size: int, work: Any, argument: Any) -> Any:
        await read.wait()
        return work(argument)

    message = jobs_to_pb([Job(id=1, work=Classify(), tokens=RaggedTokens.of([[1]]))], MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attachment, "offload", offload)
        receiving = asyncio.create_task(held.receive(message, message.ByteSize()))
        await asyncio.sleep(0)
        assert not held.idle
        read.set()
        await receiving
    assert list(jobs.held) == [1]
    assert not held.idle
    jobs.cancel([1])
    held._cancel([1])
    assert held.idle


@pytest.fixture
def jobs() -> HeldJobs:
    return HeldJobs()


@pytest.fixture
def everything() -> Outboxes:
    return Outboxes(10_000)


@in_no_time
async def test_one_frontend_has_a_bound_of_its_own(jobs: HeldJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "UNSENT_BYTES", 1000)
    slow = Frontend(jobs, Outboxes(10_000), 0)
    first = await slow.leaves(1000)
    assert jobs.aside == set()
    second = await slow.leaves(200)
    assert jobs.aside == {first, second}
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await slow.ask()  # nothing more is taken of it
    await slow.read()
    assert jobs.aside == set()
    jobs.answer(first, 200)
    assert await slow.ask()


async def test_all_together_have_one_bound(jobs: HeldJobs, everything: Outboxes) -> None:
    """Whoever has more than an even share waits, as soon as it would get more; who has less goes on."""
    slow, other, good = (Frontend(jobs, everything, 100 * number) for number in (1, 2, 3))
    waiting = await slow.leaves(8000)
    assert jobs.aside == set()  # nobody else has anything
    await other.leaves(1500)
    assert (everything.unsent, jobs.aside) == (9500, set())
    more = await slow.leaves(1000)
    assert (everything.unsent, jobs.aside) == (10_500, {waiting, more})
    for _ in range(5):
        await good.leaves(2000)  # over the bound, each time
        assert jobs.aside == {waiting, more}
        await good.read()
    await other.leaves(1000)
    assert jobs.aside == {waiting, more}
    await slow.read()
    assert (everything.unsent, jobs.aside) == (2500, set())


async def test_a_frontend_that_has_gone_counts_no_more(jobs: HeldJobs, everything: Outboxes) -> None:
    """What it has not read is gone with it."""
    slow, good = Frontend(jobs, everything, 100), Frontend(jobs, everything, 200)
    await slow.leaves(20_000)
    slow.attachment.close()
    assert everything.unsent == 0
    await good.leaves(9000)
    assert jobs.aside == set()


async def test_what_comes_in_a_message_while_too_much_is_unread_is_set_aside() -> None:
    """A message of many jobs is taken with breaths between, and answers may come meanwhile."""
    jobs = HeldJobs()
    attachment = attached(jobs)
    many = [Job(id=number, work=Classify(), tokens=RaggedTokens.of([[1]])) for number in range(200)]
    taking = asyncio.create_task(attachment.receive(message := jobs_to_pb(many, MODEL), message.ByteSize()))
    while 0 not in jobs.held:  # noqa: ASYNC110
        await asyncio.sleep(0)
    jobs.answer(0, 100 * 1024 * 1024)
    await taking
    assert jobs.aside == set(range(1, 200))


async def test_jobs_that_are_refused_count_too() -> None:
    """A frontend that sends jobs which are refused, and reads none of the errors, has to read before it sends more."""
    jobs = HeldJobs()
    attachment = attached(jobs, Outboxes(10_000))
    many = [Job(id=number, work=Classify(), tokens=RaggedTokens.of([[1]])) for number in range(200)]
    message = jobs_to_pb(many, "another fingerprint")
    await attachment.receive(message, message.ByteSize())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(attachment.receive(message, message.ByteSize()), 0.05)
    assert jobs.held == {}


async def seconds_to_report(outbox: Outbox) -> float:
    clock = asyncio.get_running_loop().time
    start = clock()
    await outbox.next_message()
    return round(clock() - start, 6)


@in_no_time
async def test_a_worker_with_work_tells_its_load_more_often() -> None:
    """By what it told last; at first it may have some."""
    for load, seconds in ((Load(), IDLE_BEAT), (Load(queued_jobs=1), REPORT_SECONDS)):
        outbox = Outbox(lambda load=load: load)
        assert await seconds_to_report(outbox) == REPORT_SECONDS
        assert await seconds_to_report(outbox) == seconds


@pytest.mark.parametrize(
    ("pauses", "seconds"),
    [([0.5, 0.05], 0.5 + REPORT_SECONDS), ([IDLE_BEAT - 0.01], IDLE_BEAT)],
    ids=["soon", "due sooner"],
)
@in_no_time
async def test_a_worker_that_has_work_again_tells_it_soon(pauses: list[float], seconds: float) -> None:
    """Frontends that believe it idle would all send their jobs there. Further jobs put the report off no further, and
    one that is due sooner stays so."""
    outbox = Outbox(Load)
    await outbox.next_message()
    reporting = asyncio.create_task(seconds_to_report(outbox))
    for pause in pauses:
        await asyncio.sleep(pause)
        outbox.hasten_report()
    assert await reporting == round(seconds, 6)


class Counted(Outbox):
    """Another frontend's, which counts how often it is told to report soon."""

    hastened = 0

    def hasten_report(self) -> None:
        self.hastened += 1


async def test_the_first_job_of_an_idle_worker_is_told_to_all() -> None:
    """The jobs after it are not: the report that is on its way counts them too. A job may have no tokens."""
    outboxes, jobs = Outboxes(1 << 30), HeldJobs()
    attachment, reporting = attached(jobs, outboxes), Counted(Load)
    outboxes.add(reporting)

    async def send(*ids: int) -> None:
        of_id = {number: NO_TOKENS if number == 4 else RaggedTokens.of([[1]]) for number in ids}
        message = jobs_to_pb([Job(id=number, work=Classify(), tokens=of_id[number]) for number in ids], MODEL)
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

    assert await share_of_others(other) == 0.0
    await send(lone, 1)
    assert await share_of_others(lone) == 0.0
    assert await share_of_others(other) == 0.5
    for number in range(2, 9):
        await send(lone, number)
    assert await share_of_others(other) == 1.0
    await asyncio.sleep(20 * RECENT_SECONDS)
    assert await share_of_others(other) < 1e-6


async def share_of_others(attachment: Attachment) -> float:
    """What the next message to a frontend says of others."""
    written: asyncio.Queue[bytes] = asyncio.Queue()
    attachment._outbox.add_outcome(1, JobResult(scores=b"1234"))
    sending = asyncio.create_task(attachment.send(written.put))
    message = pb.AttachResponse.FromString(await written.get())
    sending.cancel()
    return load_from_pb(message.load).others


def test_a_bounded_number_of_frontends_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with one of them is told once."""
    monkeypatch.setattr(attachment, "REMEMBERED", 2)
    log = FrontendLog()
    with capture_logs() as lines:
        for name in ("one", "two", "three", "one", "three"):
            log.wrong(name, InvalidInput("no"))
    assert Counter(line["name"] for line in lines) == {"one": 2, "two": 1, "three": 1}

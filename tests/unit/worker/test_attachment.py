"""Frontends that do not read their answers: what waits for them is bounded, and nobody else notices."""

import asyncio

import pytest

from gpu_worker.link import outbox
from gpu_worker.link.outbox import Outboxes
from selvage.worker.v1 import worker_pb2 as pb
from shared.codec.jobs import jobs_to_pb
from shared.jobs import Classify, Job
from shared.ragged import RaggedTokens
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
        """All that is there."""

        async def write(message: bytes) -> None:
            self.received += len(message)

        sending = asyncio.create_task(self.attachment.send(write))
        await eventually(lambda: self.attachment._outbox.empty and not self.attachment._writing)
        sending.cancel()


@pytest.fixture
def jobs() -> HeldJobs:
    return HeldJobs()


@pytest.fixture
def everything() -> Outboxes:
    return Outboxes(10_000)


@in_no_time
async def test_one_frontend_has_a_bound_of_its_own(jobs: HeldJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much all together may have."""
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

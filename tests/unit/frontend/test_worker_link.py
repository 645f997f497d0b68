"""The link to a worker that comes, goes and changes, over a real channel; the worker is a fake."""

import asyncio
from collections.abc import AsyncIterator

import fakes
import pytest
from fake_workers import JOB, TOKENS, FakeWorker, World

from frontend_service.workers.fleet import Fleet
from selvage.worker.v1 import worker_pb2 as pb
from shared import value_codec as codec
from shared.errors import Internal, InvalidInput, Overloaded, SelvageError, WorkerUnavailable
from shared.jobs import Classify, Job
from shared.load import Load
from shared.server.options import LINK_VERSION
from support.references import eventually


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """One worker, ready."""
    async with World(FakeWorker()) as made:
        await made.until(True)
        yield made


async def test_before_it_has_looked_a_fleet_has_no_model() -> None:
    with pytest.raises(WorkerUnavailable, match="no worker has answered yet"):
        World(FakeWorker()).fleet.model("")


async def test_a_worker_that_loads_is_waited_for() -> None:
    """Until then the fleet says why it has no model; then it has card, tokenizer and limit."""
    worker = FakeWorker()
    worker.loading = True
    async with World(worker) as world:
        await world.until(False)
        await eventually(lambda: "it loads" in _why(world.fleet))
        worker.loading = False
        await world.until(True)
        model = world.fleet.model("fake")
        assert (model.card, model.queued_tokens) == (worker.card, 1000)
        assert model.tokenizer.tokenizer.get_vocab_size() == len(fakes.WORDS)


def _why(fleet: Fleet) -> str:
    with pytest.raises(WorkerUnavailable) as raised:
        fleet.model("")
    assert raised.value.retry_after == 1.0
    return raised.value.message


async def test_a_worker_that_drains_gets_no_more_jobs_and_comes_back(world: World) -> None:
    before = world.fleet.model("")
    world.workers[0].load = Load(draining=True)
    await world.until(False)
    with pytest.raises(WorkerUnavailable):
        await world.run()
    world.workers[0].load = Load()
    await world.until(True)
    assert world.fleet.model("").tokenizer is before.tokenizer
    assert world.workers[0].fetched == 1


async def test_a_worker_that_stalls_gets_no_more_jobs(world: World) -> None:
    world.workers[0].load = Load(stalled="a step hangs")
    await world.until(False)


async def test_a_tokenizer_that_is_none_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link goes on trying, and serves when it is one."""
    worker = FakeWorker()
    worker.tokenizer = b"{}"
    async with World(worker) as world:
        await eventually(lambda: "its tokenizer cannot be read" in _why(world.fleet))
        worker.tokenizer = fakes.tokenizer_json()
        await world.until(True)


async def test_a_job_travels_with_its_terms(world: World) -> None:
    assert (await world.run()).scores == b"1234"
    (message,) = world.workers[0].messages
    (job,) = message.jobs
    assert (job.request_id, job.priority, job.key) == ("mine-7", pb.PRIORITY_BULK, "k")
    assert (message.fingerprint, codec.duration_from_pb(job.remaining)) == ("f", 60)


async def test_jobs_that_wait_while_a_message_is_written_share_the_next(world: World) -> None:
    """A hundred callers at once need a few messages."""
    jobs = [Job(id=number, work=Classify(), tokens=TOKENS) for number in range(100)]
    results = await asyncio.gather(*map(world.run, jobs))
    assert [each.scores for each in results] == [b"1234"] * 100
    assert sum(len(message.jobs) for message in world.workers[0].messages) == 100
    assert len(world.workers[0].messages) < 10


@pytest.mark.parametrize("error", [Overloaded("full", retry_after=2.5), InvalidInput("bad", field="jobs[0]")])
async def test_a_jobs_own_error_comes_back(world: World, error: SelvageError) -> None:
    """As what it is, with its wait and its field."""
    world.workers[0].fails = error
    with pytest.raises(type(error), match=error.message) as raised:
        await world.run()
    assert (raised.value.retry_after, raised.value.field) == (error.retry_after, error.field)


async def test_a_job_that_is_answered_wrongly_is_cancelled(world: World) -> None:
    """Its caller is told which worker it was; the worker need not go on with it, and the link does."""
    worker = world.workers[0]
    worker.scores = b"12345678"
    with pytest.raises(
        Internal, match=rf"the worker at {worker.address} does not fit: it sent more than was asked for"
    ):
        await world.run()
    await worker.cancelled.wait()
    assert list(worker.messages[-1].cancels) == [JOB.id]
    worker.scores = b"1234"
    assert (await world.run()).scores == b"1234"


async def test_a_worker_that_dies_under_a_job_is_unavailable(world: World) -> None:
    """By name, and not as what the transport calls it."""
    world.workers[0].hangs = True
    running = asyncio.ensure_future(world.run())
    await world.workers[0].reached.wait()
    await world.workers[0].server.stop(0)
    with pytest.raises(WorkerUnavailable):
        await running
    await world.until(False)


async def test_cancelling_a_run_cancels_its_job(world: World) -> None:
    """The worker hears of it; other jobs go on."""
    worker = world.workers[0]
    worker.hangs = True
    running = asyncio.ensure_future(world.run())
    await worker.reached.wait()
    running.cancel()
    await worker.cancelled.wait()
    await asyncio.wait([running])
    assert list(worker.messages[-1].cancels) == [JOB.id]
    worker.hangs = False
    assert (await world.run()).scores == b"1234"


async def test_a_worker_of_another_version_is_not_served() -> None:
    """The reason names both versions; a worker of the frontend's own version serves meanwhile."""
    other, own = FakeWorker(b"1111"), FakeWorker(b"2222")
    other.version = LINK_VERSION - 1
    async with World(other) as world:
        versions = f"it speaks version {LINK_VERSION - 1} of the link, this frontend version {LINK_VERSION}"
        await eventually(lambda: versions in _why(world.fleet))
        world.fleet._targets = [other.address, own.address]
        await own.server.start()
        await world.until_scores(b"2222")
        await own.server.stop(0)

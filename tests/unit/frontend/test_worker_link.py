"""The link to a worker that comes, goes and changes, over a real channel; its log, and how long it is set aside."""

import asyncio
from collections.abc import AsyncIterator

import fakes
import pytest
from fake_workers import JOB, TOKENS, FakeWorker, World
from structlog.testing import capture_logs

from frontend_service.workers.fleet import Fleet
from frontend_service.workers.job_stream import WrongReply
from frontend_service.workers.link import (
    FAILURES,
    FIRST_ASIDE,
    LONGEST_ASIDE,
    SETTLED_SECONDS,
    LinkLog,
    OutlierDetection,
)
from selvage.worker.v1 import worker_pb2 as pb
from shared import value_codec as codec
from shared.errors import Internal, InvalidInput, Overloaded, SelvageError, WorkerUnavailable
from shared.jobs import Classify, Job
from shared.load import Load
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
    assert [result.scores for result in results] == [b"1234"] * 100
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


READY, NOT_READY, WRONG = "worker ready", "worker not ready", "a worker's reply does not fit"


@pytest.mark.parametrize(
    ("steps", "events"),
    [
        ("attach end attach end attach end", [READY, NOT_READY]),
        ("attach end attach answer answer end", [READY, NOT_READY, READY, NOT_READY]),
        ("attach lasts end attach", [READY, NOT_READY, READY]),
        ("attach lasts break attach", [READY, NOT_READY]),
        ("loads loads nobody loads", [NOT_READY] * 3),
        ("attach less more less more answer restart less", [READY, WRONG, WRONG, READY, WRONG]),
    ],
)
def test_changes_are_told_once(steps: str, events: list[str]) -> None:
    """That it is ready again is news once it has answered a job or lasted, unless a wrong message ended the link; so is
    every other reason why it is not, and every other reason of a wrong reply, whatever the numbers in it."""
    now = 0.0
    log = LinkLog("10.0.0.7:50061", lambda: now)
    with capture_logs() as lines:
        for place, step in enumerate(steps.split()):
            match step:
                case "attach" | "restart":
                    log.attached(fakes.card(), step)
                case "end" | "break":
                    log.ended("it went", sound=step == "end")
                case "loads" | "nobody":
                    log.ended(step, sound=False)
                case "less" | "more":
                    log.wrong_reply(WrongReply(f"it sent {step}", f"{place} bytes"))
                case "answer":
                    log.answered()
                case _:
                    now += SETTLED_SECONDS + 1
    assert [line["event"] for line in lines] == events


def test_a_worker_that_is_never_good_is_set_aside_for_twice_as_long_each_time() -> None:
    worker, now, pauses = OutlierDetection(), 100.0, list[float]()
    for _ in range(9):
        pauses.append(worker.set_aside(now))
        assert worker.is_aside(now + pauses[-1] - 0.01)
        now += pauses[-1]
        assert not worker.is_aside(now)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert (pauses[0], pauses[-1]) == (FIRST_ASIDE, LONGEST_ASIDE)


def test_time_that_it_serves_makes_the_next_pause_shorter() -> None:
    worker = OutlierDetection()
    assert [worker.set_aside(now) for now in (0.0, 1.0, 3.0)] == [1, 2, 4]
    assert worker.set_aside(7.0 + 5.0) == 3
    assert worker.set_aside(15.0 + 1000.0) == FIRST_ASIDE


def test_jobs_that_fail_together_set_it_aside_once() -> None:
    """All that were under way when the first of them proved its fault."""
    worker = OutlierDetection()
    assert [worker.set_aside(now) for now in (0.0, 0.1, 0.9)] == [1, 0, 0]
    assert not worker.is_aside(1.0)


def test_failures_in_a_row_make_a_suspect_until_a_job_is_answered() -> None:
    worker = OutlierDetection()
    for failures, suspected in ((FAILURES - 1, False), (FAILURES - 1, False), (FAILURES, True)):
        for _ in range(failures):
            worker.failed()
        assert worker.suspected is suspected
        worker.answered()
        assert not worker.suspected

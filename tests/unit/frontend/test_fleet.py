"""Several workers: who gets what, who is asked next, which model a name stands for, and what is refused."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from fake_workers import JOB, FakeWorker, World, streams
from structlog.testing import capture_logs

from frontend_service.domain.limits import ExpectedReply
from frontend_service.workers import link
from frontend_service.workers.fleet import WorkerChoice
from shared.caller import RequestTerms
from shared.errors import (
    DeadlineExceeded,
    GivenBack,
    Internal,
    InvalidInput,
    Overloaded,
    SelvageError,
    UnknownModel,
    WorkerUnavailable,
)
from shared.jobs import Classify, Job, Priority, RaggedTokens
from shared.load import MARGIN, UNREAD_MARGIN, Backlog, Estimate, Load
from support.references import eventually

BUSY = Load(
    queued_tokens=1000,
    queued_jobs=1,
    tokens_per_second=100,
    backlogs={Priority.DEFAULT: Backlog(keys=1, jobs=1, tokens=1000)},
    turn=8,
)
SLOW = Load(tokens_per_second=1000.0)
"""Of a worker to which one with an unknown speed is preferred."""


async def test_another_model_waits_for_the_last_worker_of_the_first() -> None:
    """Then it takes over by itself; in between no answer is of the other."""
    first, second = FakeWorker(b"1111"), FakeWorker(b"2222", fingerprint="another")
    async with World(first) as world:
        await world.until(True)
        world.retarget(first, second)
        await second.server.start()
        await eventually(lambda: second.fetched > 0)
        old = world.fleet.model("")
        assert {(await world.run()).scores for _ in range(20)} == {b"1111"}
        await first.server.stop(0)
        await world.until_scores(b"2222")
        with pytest.raises(WorkerUnavailable, match="no worker with this model"):
            await world.fleet.run(old, JOB, ExpectedReply({}))
        await second.server.stop(0)


async def test_a_worker_that_stood_by_and_is_gone_is_forgotten() -> None:
    """So another one that stands by at its address later is told of, too."""
    first, second = FakeWorker(b"1111"), FakeWorker(b"2222", fingerprint="another")
    async with World(first) as world:
        await world.until(True)
        world.retarget(first, second)
        await second.server.start()
        await eventually(lambda: len(world.fleet._standby) == 1)
        await second.server.stop(0)
        world.retarget(first)
        await eventually(lambda: second.address not in world.addresses)
        assert world.fleet._standby == set()


async def test_a_model_answers_to_its_aliases() -> None:
    """Such as its whole hub id. What is refused, as is no name at all, tells the name that replies have."""
    first = FakeWorker(id="bge", aliases=("BAAI/bge", "embedder"))
    second = FakeWorker(b"2222", id="minilm", aliases=("small",), fingerprint="g")
    async with World(first, second) as world:
        await eventually(lambda: len(world.fleet.fingerprints) == 2)
        assert {world.fleet.model(name).card.id for name in ("bge", "BAAI/bge", "embedder")} == {"bge"}
        assert (await world.run(name="small")).scores == b"2222"
        assert [model.card.id for model in world.fleet.models()] == ["bge", "minilm"]
        for name in ("BAAI/other", ""):
            with pytest.raises(UnknownModel, match="bge, minilm"):
                world.fleet.model(name)


async def test_an_alias_that_two_models_have_stands_for_neither() -> None:
    """Nor does it stand for the one that is left while the other is away; and an id is the model's whose id it is."""
    first = FakeWorker(id="one", aliases=("embedder", "two"))
    second = FakeWorker(b"2222", id="two", aliases=("embedder",), fingerprint="g")
    async with World(first, second) as world:
        await eventually(lambda: len(world.fleet.fingerprints) == 2)
        for serving in ({"one", "two"}, {"one"}):
            await eventually(lambda serving=serving: {*world.fleet.fingerprints} == serving)  # type: ignore[misc]
            with pytest.raises(UnknownModel, match="may be any of one, two: name one"):
                world.fleet.model("embedder")
            second.load = Load(draining=True)
        with pytest.raises(WorkerUnavailable):
            world.fleet.model("two")


async def test_an_alias_of_a_model_that_waits_is_not_answered_by_the_one_that_serves() -> None:
    """Both have one id; the alias of one of them is no name of the other, whichever of both serves."""
    old = FakeWorker(b"1111", aliases=("m-v1",))
    new = FakeWorker(b"2222", aliases=("m-v2",), fingerprint="another")
    async with World(old) as world:
        await world.until(True)
        world.retarget(old, new)
        await new.server.start()
        await eventually(lambda: world.fleet.workers == {"fake": 2})
        assert (await world.run(name="m-v1")).scores == b"1111"
        with pytest.raises(WorkerUnavailable, match=r"m-v2.? waits until no worker serves the other model"):
            world.fleet.model("m-v2")
        await old.server.stop(0)
        await world.until_scores(b"2222")
        assert (await world.run(name="m-v2")).scores == b"2222"
        await new.server.stop(0)


async def test_a_worker_that_drains_and_has_left_its_name_still_answers() -> None:
    """A rolling restart: the address goes from DNS while jobs are under way."""
    first, second = FakeWorker(), FakeWorker()
    first.holds = asyncio.Event()
    async with World(first, second) as world:
        world.retarget(first)
        await world.until(True)
        running = asyncio.ensure_future(world.run())
        await first.reached.wait()
        first.load = Load(draining=True)
        await eventually(lambda: not world.fleet.fingerprints)
        world.retarget(second)
        await eventually(lambda: second.address in world.addresses)
        await asyncio.sleep(0.1)
        first.holds.set()
        assert (await running).scores == b"1234"


async def test_a_job_that_a_worker_gives_back_goes_to_another() -> None:
    """It ends, and has not begun the job. If all workers do, the caller is told."""
    first, second = FakeWorker(b"1111"), FakeWorker(b"2222")
    large = Job(id=9, work=Classify(), tokens=RaggedTokens.of([[1] * 100] * 100))
    async with World(first, second) as world:
        await eventually(lambda: len(streams(world.fleet)) == 2)
        first.fails = GivenBack("it ends")
        for job in (JOB, large):
            assert (await world.run(job)).scores == b"2222" * len(job.tokens)
        second.fails = first.fails
        with pytest.raises(WorkerUnavailable, match="it ends"):
            await world.run()


async def test_a_job_that_a_worker_stalled_with_goes_to_no_other() -> None:
    """It may have been the job that did it."""
    first, second = FakeWorker(), FakeWorker()
    first.fails = second.fails = WorkerUnavailable("stalled")
    async with World(first, second) as world:
        await eventually(lambda: len(streams(world.fleet)) == 2)
        with pytest.raises(WorkerUnavailable, match="stalled"):
            await world.run()
        assert len(first.messages) + len(second.messages) == 1


FAILURES = [
    Internal("the device failed"),
    Overloaded("the queue is full", retry_after=1.0),
]


async def failed(world: World, calls: int) -> int:
    """How many of so many calls fail."""
    jobs = [replace(JOB, id=number) for number in range(calls)]
    outcomes = await asyncio.gather(*map(world.run, jobs), return_exceptions=True)
    return sum(isinstance(outcome, SelvageError) for outcome in outcomes)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.reason)
async def test_a_worker_that_fails_what_another_takes_is_set_aside(failure: SelvageError) -> None:
    """The caller whose job proves it is answered, and so is everybody from then on. The log and the figures say so."""
    bad, good = FakeWorker(b"1111"), FakeWorker(b"2222")
    bad.fails = failure
    good.load = SLOW
    async with World(bad, good) as world:
        await eventually(lambda: sorted(stream.load.tokens_per_second for stream in streams(world.fleet)) == [0, 1000])
        with capture_logs() as lines:
            assert await failed(world, 1) == 1
            assert world.fleet.aside == {"fake": 0}
            assert await failed(world, 30) == link.FAILURES - 2
        [line] = [line for line in lines if line["event"] == "worker set aside"]
        assert (line["target"], line["seconds"], failure.message in line["why"]) == (bad.address, 1.0, True)
        assert (world.fleet.aside, world.fleet.workers) == ({"fake": 1}, {"fake": 2})
        assert world.fleet.waits["fake"] == world.fleet._links[good.address].estimate(1, Priority.DEFAULT, "").wait


@pytest.mark.parametrize("failure", [Overloaded("full", retry_after=1.0), DeadlineExceeded("too late")], ids=repr)
async def test_a_busy_worker_is_not_set_aside(failure: SelvageError) -> None:
    """It is right to refuse, or to be late; the other one alone would have less room for all."""
    busy, slow = FakeWorker(), FakeWorker()
    busy.fails, busy.load, slow.load = failure, BUSY, replace(BUSY, tokens_per_second=1)
    async with World(busy, slow) as world:
        await eventually(lambda: sorted(stream.load.tokens_per_second for stream in streams(world.fleet)) == [1, 100])
        calls = 2 * link.FAILURES
        assert await failed(world, calls) > link.FAILURES
        assert world.fleet.aside == {"fake": 0}


async def test_a_job_that_all_workers_fail_sets_none_aside() -> None:
    """So nobody takes workers from others by jobs that make no sense. No more than two workers are asked."""
    workers = [FakeWorker(), FakeWorker(), FakeWorker()]
    for number, worker in enumerate(workers):
        worker.fails = InvalidInput(f"bad {number}", field="f")
    async with World(*workers) as world:
        await eventually(lambda: len(streams(world.fleet)) == 3)
        calls = 10 * link.FAILURES
        assert sum([await failed(world, 1) for _ in range(calls)]) == calls
        assert calls < sum(len(worker.messages) for worker in workers) <= 2 * calls
        assert world.fleet.aside == {"fake": 0}


async def test_the_last_worker_that_serves_is_never_set_aside() -> None:
    """Alone it gets all jobs, and so does one that was set aside when the others have gone."""
    bad, good = FakeWorker(b"1111"), FakeWorker(b"2222")
    bad.fails = Internal("it failed once")
    good.load = SLOW
    async with World(bad) as world:
        await world.until(True)
        assert await failed(world, 20) == 20
        assert world.fleet.aside == {"fake": 0}
        world.retarget(bad, good)
        await good.server.start()
        await eventually(lambda: world.fleet.workers == {"fake": 2})
        assert (await world.run()).scores == b"2222"
        assert world.fleet.aside == {"fake": 1}
        bad.fails = None
        await good.server.stop(0)
        await world.until_scores(b"1111")


async def test_what_is_let_in_unread_is_hardly_ever_refused_once_it_is_read() -> None:
    """The wait is a little longer for it than for the smallest one, and less time is left: refused is what is large."""
    worker = FakeWorker()
    worker.load = replace(BUSY, turn=512)
    async with World(worker) as world:
        await world.until(True)
        await eventually(lambda: world.fleet.waits.get("fake", 0) > 0)
        seconds = world.fleet.waits["fake"] / UNREAD_MARGIN + 0.03
        world.fleet.check_terms(RequestTerms.within(seconds))
        small, large = (
            Job(id=size, work=Classify(), tokens=RaggedTokens.of([[1] * size]), remaining=seconds - 0.02)
            for size in (16, 512)
        )
        assert (await world.run(small)).scores == b"1234"
        with pytest.raises(Overloaded, match=r"needs 5\.\d s, up to 1\d\.\d s .* the deadline is in 1\d\.\d s"):
            await world.run(large)
        assert world.fleet.refused == {"deadline": 1, "queue_seconds": 0}


@pytest.mark.parametrize(("seconds", "refused"), [(0.0, False), (9.0, True), (12.0, False)])
async def test_what_a_worker_would_let_wait_too_long_is_refused_unread(seconds: float, refused: bool) -> None:
    """Whatever its deadline: ten seconds of its class wait. Zero is no bound."""
    worker = FakeWorker()
    worker.load, worker.queue_seconds = replace(BUSY, turn=512), seconds
    async with World(worker) as world:
        await world.until(True)
        await eventually(lambda: world.fleet.waits.get("fake", 0) > 0)
        if not refused:
            world.fleet.check_terms(RequestTerms.within(1000))
            return
        with pytest.raises(Overloaded, match=r"would wait up to 10\.0 s, the limit is 9 s") as raised:
            world.fleet.check_terms(RequestTerms.within(1000))
        assert raised.value.retry_after == 10.0
        world.fleet.check_terms(replace(RequestTerms.within(1000), priority=Priority.INTERACTIVE))
        assert world.fleet.refused == {"deadline": 0, "queue_seconds": 1}


@dataclass(eq=False)
class FakeLink:
    """A link whose worker a job waits for so long, that was not heard of for so long, that takes so long for the job,
    and to which others lately sent so much."""

    seconds: float
    unheard_seconds: float = 0.0
    takes: float = 0.01
    others: float = 1.0

    def estimate(self, tokens: int, priority: Priority, key: str) -> Estimate:
        return Estimate(wait=self.seconds, takes=self.takes)


def chosen(*links: FakeLink, remaining: float | None = None, draw: Callable[[], float] | None = None) -> FakeLink:
    job = Job(id=1, work=Classify(), tokens=RaggedTokens.of([[1]]), remaining=remaining)
    candidates: Any = links
    best: Any = WorkerChoice(draw or random.Random(1).random).best(candidates, job)[0]
    return best


def test_a_lone_frontend_knows_what_waits() -> None:
    """Nobody else sends anything, so the shortest wait is the shortest, by however little, and however old the reports:
    another frontend may be attached and send nothing."""
    near, far = FakeLink(0.100, 2.0, others=0.0), FakeLink(0.101, 2.0, others=0.0)
    assert all(chosen(far, near, draw=lambda: 1.0) is near for _ in range(10))


def test_of_idle_workers_the_fast_one_is_chosen() -> None:
    """Where others send little, however long ago the two told that they have nothing to do, and whatever is drawn."""
    for others in (0.0, 0.15):
        unheard = Load().unheard(1.0)
        fast = FakeLink(0.0, unheard, takes=0.005, others=others)
        slow = FakeLink(0.0, unheard, takes=0.020, others=0.0)
        draw = random.Random(1).random
        assert all(chosen(slow, fast, draw=draw) is fast for _ in range(200))


def test_frontends_that_hear_the_same_choose_differently() -> None:
    """Workers that others may have sent work are equally good while their waits differ by less."""
    links, draw = [FakeLink(0.0, 0.1) for _ in range(4)], random.Random(1).random
    times = Counter(links.index(chosen(*links, draw=draw)) for _ in range(400))
    assert min(times[place] for place in range(4)) > 60


def test_the_older_a_report_the_less_it_is_worth() -> None:
    """A worker that was busy a moment ago may be the better one where the other has not been heard of for long."""
    busy, unheard = FakeLink(0.2, 0.0), FakeLink(0.0, 1.0)
    draw = random.Random(1).random
    times = Counter(chosen(busy, unheard, draw=draw) is busy for _ in range(400))
    assert times[True] > times[False] > 40


def test_whose_queue_is_longer_than_what_may_have_come_elsewhere_is_not_chosen() -> None:
    busy, free, draw = FakeLink(0.5, 0.1), FakeLink(0.2, 0.1), random.Random(1).random
    assert all(chosen(busy, free, draw=draw) is free for _ in range(200))


def test_no_draw_leads_to_a_worker_that_would_be_late() -> None:
    """Nor is a job refused while one worker would be in time."""
    late, in_time, draw = FakeLink(MARGIN, 2.0), FakeLink(MARGIN - 0.1, 2.0), random.Random(1).random
    assert all(chosen(late, in_time, remaining=1.0, draw=draw) is in_time for _ in range(200))


def test_what_all_would_end_late_is_refused_and_counted() -> None:
    """The refusal tells the wait where it is shortest."""
    choice, job = WorkerChoice(), Job(id=1, work=Classify(), tokens=RaggedTokens.of([[1]]), remaining=1.0)
    candidates: Any = [FakeLink(3.0, 0.1), FakeLink(2.0, 0.1)]
    with pytest.raises(Overloaded, match=r"up to 2\.0 s"):
        choice.best(candidates, job)
    assert choice.refused["deadline"] == 1

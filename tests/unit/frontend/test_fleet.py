"""Several workers: who gets what, who is asked next, which model a name stands for, and what is refused."""

import asyncio
from dataclasses import replace

import pytest
from fake_workers import JOB, FakeWorker, World, streams
from structlog.testing import capture_logs

from frontend_service.workers import fleet, link
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
from shared.load import UNREAD_MARGIN, Backlog, Load
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
        world.fleet._targets = [first.address, second.address]
        await second.server.start()
        await eventually(lambda: second.fetched > 0)
        old = world.fleet.model("")
        assert {(await world.run()).scores for _ in range(20)} == {b"1111"}
        await first.server.stop(0)
        await world.until_scores(b"2222")
        with pytest.raises(WorkerUnavailable, match="no worker with this model"):
            await world.fleet.run(old, JOB)
        await second.server.stop(0)


async def test_a_worker_that_stood_by_and_is_gone_is_forgotten() -> None:
    """So another one that stands by at its address later is told of, too."""
    first, second = FakeWorker(b"1111"), FakeWorker(b"2222", fingerprint="another")
    async with World(first) as world:
        await world.until(True)
        world.fleet._targets = [first.address, second.address]
        await second.server.start()
        await eventually(lambda: len(world.fleet._standby) == 1)
        await second.server.stop(0)
        world.fleet._targets = [first.address]
        await eventually(lambda: second.address not in world.fleet._links)
        assert world.fleet._standby == set()


async def test_models_of_several_names_are_chosen_by_name() -> None:
    """Without a name the request is refused, with an unknown one too."""
    one, two = FakeWorker(b"1111", id="one"), FakeWorker(b"2222", id="two", fingerprint="g")
    async with World(one, two) as world:
        await eventually(lambda: len(world.fleet._served) == 2)
        assert [model.card.id for model in world.fleet.models()] == ["one", "two"]
        assert [(await world.run(name=name)).scores for name in ("one", "two")] == [b"1111", b"2222"]
        for name in ("", "three"):
            with pytest.raises(UnknownModel, match=r"one, two|two, one"):
                world.fleet.model(name)


async def test_a_model_answers_to_its_aliases() -> None:
    """Such as its whole hub id. What is refused tells the name that replies have."""
    one = FakeWorker(id="bge", aliases=("BAAI/bge", "embedder"))
    other = FakeWorker(b"2222", id="minilm", aliases=("small",), fingerprint="g")
    async with World(one, other) as world:
        await eventually(lambda: len(world.fleet._served) == 2)
        assert {world.fleet.model(name).card.id for name in ("bge", "BAAI/bge", "embedder")} == {"bge"}
        assert (await world.run(name="small")).scores == b"2222"
        with pytest.raises(UnknownModel, match=r"no model is called .BAAI/other.; there is bge, minilm"):
            world.fleet.model("BAAI/other")


async def test_an_alias_that_two_models_have_stands_for_neither() -> None:
    """Nor does it stand for the one that is left while the other is away; and an id is the model's whose id it is."""
    one = FakeWorker(id="one", aliases=("embedder", "two"))
    two = FakeWorker(b"2222", id="two", aliases=("embedder",), fingerprint="g")
    async with World(one, two) as world:
        await eventually(lambda: len(world.fleet._served) == 2)
        for serving in ({"one", "two"}, {"one"}):
            await eventually(lambda serving=serving: {*world.fleet._served} == serving)  # type: ignore[misc]
            with pytest.raises(UnknownModel, match="may be any of one, two: name one"):
                world.fleet.model("embedder")
            two.load = Load(draining=True)
        with pytest.raises(WorkerUnavailable):
            world.fleet.model("two")


async def test_an_alias_of_a_model_that_waits_is_not_answered_by_the_one_that_serves() -> None:
    """Both have one id; the alias of one of them is no name of the other, whichever of both serves."""
    old = FakeWorker(b"1111", aliases=("m-v1",))
    new = FakeWorker(b"2222", aliases=("m-v2",), fingerprint="another")
    async with World(old) as world:
        await world.until(True)
        world.fleet._targets = [old.address, new.address]
        await new.server.start()
        await eventually(lambda: "m-v2" in world.fleet._aliases)
        assert (await world.run(name="m-v1")).scores == b"1111"
        with pytest.raises(WorkerUnavailable, match=r"m-v2.? waits until no worker serves the other model"):
            world.fleet.model("m-v2")
        await old.server.stop(0)
        await world.until_scores(b"2222")
        assert (await world.run(name="m-v2")).scores == b"2222"
        await new.server.stop(0)


async def test_a_worker_that_drains_and_has_left_its_name_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rolling restart: the address goes from DNS while jobs are under way."""
    monkeypatch.setattr(fleet, "REFRESH_SECONDS", 0.02)
    one, other = FakeWorker(), FakeWorker()
    one.holds = asyncio.Event()
    async with World(one, other) as world:
        world.fleet._targets = [one.address]
        await world.until(True)
        running = asyncio.ensure_future(world.run())
        await one.reached.wait()
        one.load = Load(draining=True)
        await eventually(lambda: not world.fleet._served)
        world.fleet._targets = [other.address]
        await eventually(lambda: other.address in world.fleet._links)
        await asyncio.sleep(0.1)
        one.holds.set()
        assert (await running).scores == b"1234"


async def test_a_job_that_a_worker_gives_back_goes_to_another() -> None:
    """It ends, and has not begun the job. If all workers do, the caller is told."""
    one, other = FakeWorker(b"1111"), FakeWorker(b"2222")
    large = Job(id=9, work=Classify(), tokens=RaggedTokens.of([[1] * 100] * 100))
    async with World(one, other) as world:
        await eventually(lambda: len(streams(world.fleet)) == 2)
        one.fails = GivenBack("it ends")
        for job in (JOB, large):
            assert (await world.run(job)).scores == b"2222" * len(job.tokens)
        other.fails = one.fails
        with pytest.raises(WorkerUnavailable, match="it ends"):
            await world.run()


async def test_a_job_that_a_worker_stalled_with_goes_to_no_other() -> None:
    """It may have been the job that did it."""
    one, other = FakeWorker(), FakeWorker()
    one.fails = other.fails = WorkerUnavailable("stalled")
    async with World(one, other) as world:
        await eventually(lambda: len(streams(world.fleet)) == 2)
        with pytest.raises(WorkerUnavailable, match="stalled"):
            await world.run()
        assert len(one.messages) + len(other.messages) == 1


FAILURES = [
    Internal("the device failed"),
    Overloaded("the queue is full", retry_after=1.0),
    InvalidInput("no such token", field="texts[0]"),
    WorkerUnavailable("it has no such model", retry_after=1.0),
]


async def failed(world: World, calls: int) -> int:
    """How many of so many calls fail."""
    jobs = [replace(JOB, id=number) for number in range(calls)]
    outcomes = await asyncio.gather(*map(world.run, jobs), return_exceptions=True)
    return sum(isinstance(each, SelvageError) for each in outcomes)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.reason)
async def test_a_worker_that_fails_what_another_takes_is_set_aside(failure: SelvageError) -> None:
    """The caller whose job proves it is answered, and so is everybody from then on. The log and the figures say so."""
    bad, good = FakeWorker(b"1111"), FakeWorker(b"2222")
    bad.fails = failure
    good.load = SLOW
    async with World(bad, good) as world:
        await eventually(lambda: sorted(each.load.tokens_per_second for each in streams(world.fleet)) == [0, 1000])
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
        await eventually(lambda: sorted(each.load.tokens_per_second for each in streams(world.fleet)) == [1, 100])
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
        world.fleet._targets = [bad.address, good.address]
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

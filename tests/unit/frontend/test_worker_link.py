"""Links to workers that come, go and change, over real channels; the workers are fakes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import fakes
import grpc
import pytest

from frontend_service.worker import fleet, stream
from frontend_service.worker.fleet import Fleet
from selvage.worker.v1 import worker_pb2 as pb
from selvage.worker.v1 import worker_pb2_grpc
from shared import codec
from shared.errors import GivenBack, InvalidInput, Overloaded, SelvageError, UnknownModel, WorkerUnavailable
from shared.jobs import Classify, Job, JobResult, Priority
from shared.load import Backlog, Load
from shared.load_codec import load_to_pb
from shared.ragged import RaggedTokens
from shared.result_codec import Sending
from shared.rpc import LINK_VERSION
from shared.rpc.status import abort
from shared.terms import Terms

TOKENS = RaggedTokens.of([[1, 2]])
JOB = Job(id=7, work=Classify(), tokens=TOKENS, remaining=60, request_id="mine-7", key="k", priority=Priority.BULK)


class FakeWorker(worker_pb2_grpc.WorkerServiceServicer):
    """Answers each job with four bytes of its own, with `fails`, or never."""

    def __init__(self, scores: bytes = b"1234", **card: object) -> None:
        self.card, self.scores = fakes.card(**card), scores
        self.tokenizer = fakes.tokenizer_json()
        self.fetched = 0
        self.fails: SelvageError | None = None
        self.loading = self.hangs = self.silent = False
        self.holds: asyncio.Event | None = None
        self.load = Load()
        self.reached, self.cancelled = asyncio.Event(), asyncio.Event()
        self.messages: list[pb.AttachRequest] = []
        self.server = grpc.aio.server()
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        if self.loading:
            await abort(context, WorkerUnavailable("it loads"), "id")
        return pb.DescribeResponse(card=codec.card_to_pb(self.card), queued_tokens=1000)

    async def GetTokenizer(
        self, request: pb.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[pb.GetTokenizerResponse]:
        self.fetched += 1
        half = len(self.tokenizer) // 2
        yield pb.GetTokenizerResponse(name="tokenizer.json", data=self.tokenizer[:half])
        yield pb.GetTokenizerResponse(name="another.json", data=b"not for us")
        yield pb.GetTokenizerResponse(name="tokenizer.json", data=self.tokenizer[half:])

    async def Attach(self, requests: AsyncIterator[pb.AttachRequest], context: Any) -> None:
        hello = (await anext(requests)).hello
        assert hello.fingerprint == self.card.fingerprint
        await context.write(pb.AttachResponse(welcome=pb.Welcome(version=LINK_VERSION)))
        writing = asyncio.Lock()
        beating = asyncio.create_task(self._beat(context, writing))
        try:
            async for request in requests:
                self.messages.append(request)
                self.reached.set()
                if request.cancels:
                    self.cancelled.set()
                if self.holds is not None:
                    await self.holds.wait()
                for job in [] if self.hangs else request.jobs:
                    answer = pb.AttachResponse()
                    Sending(job.id, self.fails or JobResult(scores=self.scores)).take(answer, 100)
                    async with writing:
                        await context.write(answer)
        finally:
            beating.cancel()

    async def _beat(self, context: Any, writing: asyncio.Lock) -> None:
        while True:
            async with writing:
                if not self.silent:
                    await context.write(pb.AttachResponse(load=load_to_pb(self.load)))
            await asyncio.sleep(0.02)


async def eventually(condition: Callable[[], bool]) -> None:
    """Returns once it holds; what happens in a process of its own time has no event to wait for."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


class World:
    """Workers, a fleet of links to them, and what it told of itself."""

    def __init__(self, *workers: FakeWorker) -> None:
        self.workers = workers
        self.told: asyncio.Queue[bool] = asyncio.Queue()
        self.fleet = Fleet([each.address for each in workers], ThreadPoolExecutor(1), self.told.put)

    async def until(self, ready: bool) -> None:
        """Returns when the fleet tells so."""
        async with asyncio.timeout(20):
            while await self.told.get() is not ready:
                pass

    async def until_scores(self, scores: bytes) -> None:
        """Returns when a worker answers with these."""
        async with asyncio.timeout(20):
            while True:
                with suppress(WorkerUnavailable):
                    if (await self.run()).scores == scores:
                        return
                await asyncio.sleep(0.02)

    async def run(self, job: Job = JOB, name: str = "") -> JobResult:
        return await self.fleet.run(self.fleet.model(name), job)

    async def __aenter__(self) -> "World":
        for each in self.workers:
            await each.server.start()
        self.supervising = asyncio.create_task(self.fleet.supervise())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.supervising.cancel()
        for each in self.workers:
            await each.server.stop(0)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """One worker, ready."""
    async with World(FakeWorker()) as made:
        await made.until(True)
        yield made


async def test_before_it_has_looked_a_fleet_has_no_model() -> None:
    """And says so."""
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
        assert model.tokenization.tokenizer.get_vocab_size() == len(fakes.WORDS)


def _why(fleet: Fleet) -> str:
    with pytest.raises(WorkerUnavailable) as raised:
        fleet.model("")
    assert raised.value.retry_after == 1.0
    return raised.value.message


async def test_a_worker_that_drains_gets_no_more_jobs_and_comes_back(world: World) -> None:
    """Its tokenizer is fetched once."""
    before = world.fleet.model("")
    world.workers[0].load = Load(draining=True)
    await world.until(False)
    with pytest.raises(WorkerUnavailable):
        await world.run()
    world.workers[0].load = Load()
    await world.until(True)
    assert world.fleet.model("").tokenization is before.tokenization
    assert world.workers[0].fetched == 1


async def test_a_worker_that_stalls_gets_no_more_jobs(world: World) -> None:
    """It says so itself."""
    world.workers[0].load = Load(stalled="a step hangs")
    await world.until(False)


async def test_a_worker_that_falls_silent_is_lost_and_found_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had is answered UNAVAILABLE."""
    monkeypatch.setattr(stream, "SILENCE", 0.2)
    worker = world.workers[0]
    worker.hangs = worker.silent = True
    running = asyncio.ensure_future(world.run())
    with pytest.raises(WorkerUnavailable, match="nothing was heard of it"):
        await running
    worker.hangs = worker.silent = False
    await world.until_scores(b"1234")


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


async def test_jobs_go_where_the_wait_is_least() -> None:
    """By the load that the workers tell, and by what was sent since."""
    busy, free = FakeWorker(b"1111"), FakeWorker(b"2222")
    waiting = Backlog(keys=1, tokens=10_000, jobs=(0,) * 13 + (1,))
    busy.load = Load(queued_tokens=10_000, tokens_per_second=1000.0, backlogs={Priority.BULK: waiting})
    free.load = Load(tokens_per_second=1000.0)
    async with World(busy, free) as world:
        await eventually(lambda: sum(each.load.tokens_per_second > 0 for each in _streams(world.fleet)) == 2)
        assert {(await world.run()).scores for _ in range(10)} == {b"2222"}


def _streams(fleet: Fleet) -> list[stream.Stream]:
    return [each._stream for each in fleet._links.values() if each._stream is not None]


async def test_a_tokenizer_that_is_none_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link goes on trying, and serves when it is one."""
    worker = FakeWorker()
    worker.tokenizer = b"{}"
    async with World(worker) as world:
        await eventually(lambda: "not understood" in _why(world.fleet))
        worker.tokenizer = fakes.tokenizer_json()
        await world.until(True)


async def test_a_job_travels_with_its_terms(world: World) -> None:
    """Request id, priority, key, deadline and fingerprint."""
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
    await asyncio.wait_for(worker.cancelled.wait(), 10)
    await asyncio.wait([running])
    assert list(worker.messages[-1].cancels) == [JOB.id]
    worker.hangs = False
    assert (await world.run()).scores == b"1234"


async def test_what_metrics_read_of_the_fleet() -> None:
    """Workers that serve, by model; the least wait; what was refused because nobody could answer in time."""
    busy = Load(
        queued_tokens=1000,
        queued_jobs=1,
        tokens_per_second=100,
        backlogs={Priority.DEFAULT: Backlog(keys=1, tokens=1000, jobs=(0,) * 9 + (1,))},
        turn=8,
    )
    one, other = FakeWorker(), FakeWorker()
    one.load = other.load = busy
    async with World(one, other) as world:
        await world.until(True)
        await eventually(lambda: world.fleet.workers == {one.card.id: 2})
        await eventually(lambda: world.fleet.waits.get(one.card.id, 0) > 0)
        assert world.fleet.refused == {"deadline": 0}
        with pytest.raises(Overloaded):
            world.fleet.check(Terms.within(world.fleet.waits[one.card.id]))
        assert world.fleet.refused == {"deadline": 1}
        one.load = other.load = Load(draining=True)
        await eventually(lambda: world.fleet.workers == {one.card.id: 0})
        assert world.fleet.waits == {}


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
    """Whole or in part: it ends, and has not begun. If all do, the caller is told."""
    one, other = FakeWorker(b"1111"), FakeWorker(b"2222")
    large = Job(id=9, work=Classify(), tokens=RaggedTokens.of([[1] * 100] * 100))
    async with World(one, other) as world:
        await eventually(lambda: len(_streams(world.fleet)) == 2)
        one.fails = GivenBack("it ends")
        for job in (JOB, large):
            assert (await world.run(job)).scores == b"2222"
        other.fails = one.fails
        with pytest.raises(WorkerUnavailable, match="it ends"):
            await world.run()


async def test_a_job_that_a_worker_stalled_with_goes_to_no_other() -> None:
    """It may have been the job that did it."""
    one, other = FakeWorker(), FakeWorker()
    one.fails = other.fails = WorkerUnavailable("stalled")
    async with World(one, other) as world:
        await eventually(lambda: len(_streams(world.fleet)) == 2)
        with pytest.raises(WorkerUnavailable, match="stalled"):
            await world.run()
        assert len(one.messages) + len(other.messages) == 1


async def test_a_large_rerank_is_split_and_fails_as_its_part_does() -> None:
    """Over two workers that share a model; the error of one part is the job's own, not a group of errors."""
    one, other = FakeWorker(), FakeWorker()
    job = Job(id=9, work=Classify(), tokens=RaggedTokens.of([[1] * 100] * 100))
    async with World(one, other) as world:
        await eventually(lambda: len(_streams(world.fleet)) == 2)
        assert (await world.run(job)).scores == b"1234" * 2
        assert [sum(each.sequences for each in worker.messages[-1].jobs) for worker in (one, other)] == [50, 50]
        other.fails = InvalidInput("bad", field="f")
        with pytest.raises(InvalidInput, match="bad"):
            await world.run(job)

"""Two steps at most are under way, in order, and what fails in one leaves the other's answers."""

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.device.inline import Inline
from gpu_worker.loop import Answer, Loop
from gpu_worker.step.flight import OutOfMemory, Part
from shared.errors import DeadlineExceeded, InputTooLarge, Internal, Overloaded
from shared.jobs import Encode, Job, JobResult, Priority
from shared.ragged import RaggedTokens
from shared.vectors import OutputKind

WORK = Encode(outputs=frozenset({OutputKind.DENSE}), normalize=True, normalize_tokens=True)


class FakeProgress:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.costs: Sequence[int] = job.tokens.lengths
        self.computed: set[int] = set()
        self.served: list[int] = []

    def result(self) -> JobResult:
        return JobResult(row_lengths=tuple(self.served))


class FakeEngine:
    """A device that computes at once, in order; a unit needs all before it, as documents need their queries' rows.

    A unit of length 13 is out of memory `failing` times; `events` tell what was launched and collected.
    """

    def __init__(self, failing: int = 0) -> None:
        self.failing = failing
        self.events: list[tuple[str, int]] = []
        self.launched = 0

    def open(self, job: Job) -> FakeProgress:
        return FakeProgress(job)

    def launch(self, parts: Sequence[Part]) -> "FakeFlight":
        self.launched += 1
        self.events.append(("launch", self.launched))
        chosen: list[tuple[FakeProgress, range]] = [(part.progress, range(part.start, part.stop)) for part in parts]
        error: Exception | None = None
        if self.failing and any(progress.costs[unit] == 13 for progress, units in chosen for unit in units):
            self.failing -= 1
            error = OutOfMemory()
        elif any(not set(range(units.start)) <= progress.computed for progress, units in chosen):
            error = KeyError("rows that a step before should have left")
        else:
            for progress, units in chosen:
                progress.computed |= set(units)
        return FakeFlight(self, self.launched, chosen, error)


class FakeFlight:
    def __init__(
        self, engine: FakeEngine, number: int, chosen: list[tuple[FakeProgress, range]], error: Exception | None
    ) -> None:
        self._engine, self._number, self._chosen, self._error = engine, number, chosen, error
        self.arrived: Future[None] = Future()
        self.arrived.set_result(None)

    def collect(self) -> None:
        self._engine.events.append(("collect", self._number))
        if self._error is not None:
            raise self._error
        for progress, units in self._chosen:
            progress.served.extend(progress.costs[unit] for unit in units)


def job(
    identity: int, *lengths: int, remaining: float | None = None, priority: Priority = Priority.DEFAULT, key: str = ""
) -> Job:
    tokens = RaggedTokens.of([[0] * length for length in lengths])
    return Job(id=identity, work=WORK, tokens=tokens, remaining=remaining, priority=priority, key=key)


def served(engine: FakeEngine, *jobs: Job, step_tokens: int = 100) -> list[Answer]:
    loop = Loop(engine, step_tokens=step_tokens, queued_tokens=10**9)
    for each in jobs:
        loop.submit(each)
    return list(loop.until_idle())


def shown(answer: Answer) -> tuple[int, object]:
    outcome = answer.outcome
    return answer.id, outcome.row_lengths if isinstance(outcome, JobResult) else type(outcome)


def test_the_next_step_is_launched_before_the_last_is_collected() -> None:
    """Whenever work waits; never three are under way, and answers come in order."""
    engine = FakeEngine()
    answers = served(engine, *(job(each, 100) for each in range(1, 6)))
    assert [answer.id for answer in answers] == [1, 2, 3, 4, 5]
    launches = [engine.events.index(("launch", each)) for each in range(1, 6)]
    collects = [engine.events.index(("collect", each)) for each in range(1, 6)]
    assert all(launches[each + 1] < collects[each] for each in range(4))
    assert all(collects[each] < launches[each + 2] for each in range(3))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=8), min_size=1, max_size=8), st.integers(20, 150))
def test_every_job_is_answered_once_and_whole(lengths: list[list[int]], step_tokens: int) -> None:
    """However jobs are cut into steps; two steps at most are under way."""
    engine = FakeEngine()
    answers = served(engine, *(job(each, *own) for each, own in enumerate(lengths)), step_tokens=step_tokens)
    assert sorted(map(shown, answers)) == [(each, tuple(own)) for each, own in enumerate(lengths)]
    under_way = 0
    for event, _ in engine.events:
        under_way += 1 if event == "launch" else -1
        assert 0 <= under_way <= 2


def test_out_of_memory_in_the_next_step_leaves_the_last_one_answered() -> None:
    """And itself fails its own job only."""
    engine = FakeEngine(failing=10)
    answers = served(engine, job(1, 100), job(2, 13, 87), job(3, 100))
    assert sorted(map(shown, answers)) == [(1, (100,)), (2, InputTooLarge), (3, (100,))]


def test_a_step_behind_a_failed_one_is_run_again() -> None:
    """It may have missed rows that the failed one should have left: its own result counts for nothing."""
    engine = FakeEngine(failing=1)
    answers = served(engine, job(1, 13, 87, 50, 50, 100))
    assert list(map(shown, answers)) == [(1, (13, 87, 50, 50, 100))]


def test_a_step_that_cannot_be_launched_fails_its_jobs_alone() -> None:
    """A bug of ours on the host; the loop goes on."""
    engine, reports = FakeEngine(), list[str]()
    honest = engine.launch

    def broken(parts: Sequence[Part]) -> FakeFlight:
        if any(part.progress.job.id == 2 for part in parts):
            raise RuntimeError("a bug")
        return honest(parts)

    engine.launch = broken
    loop = Loop(engine, step_tokens=300, queued_tokens=1000, report=lambda event, *_: reports.append(event))
    for each in (1, 2, 3):
        loop.submit(job(each, 50))
    assert sorted(map(shown, loop.until_idle())) == [(1, (50,)), (2, Internal), (3, (50,))]
    assert reports == ["step failed"] * 2


@pytest.mark.parametrize(("waits", "worth"), [(0, False), (60, False), (99, False), (100, True), (200, True)])
def test_a_step_is_launched_early_once_it_is_whole(waits: int, worth: bool) -> None:
    """Less would leave out what comes while the other is computed: requests would be computed one by one."""
    loop = Loop(FakeEngine(), step_tokens=100, queued_tokens=1000)
    assert not loop.worth_a_launch
    loop.submit(job(1, 60))
    assert loop.worth_a_launch
    planned = loop.plan()
    assert planned is not None
    loop.launch(planned)
    if waits:
        loop.submit(job(2, *[1] * waits))
    assert loop.worth_a_launch is worth


def test_one_failure_does_not_end_batching() -> None:
    """Only steps that go on with the failed job are run again, and nothing is launched behind one that will be."""
    engine = FakeEngine(failing=1)
    jobs = [job(1, 13, *[10] * 60), *(job(each, *[10] * 20) for each in range(2, 12))]
    answers = served(engine, *jobs)
    assert sorted(map(shown, answers)) == [(each.id, tuple(each.tokens.lengths)) for each in jobs]
    steps = -(-sum(sum(each.tokens.lengths) for each in jobs) // 100)
    assert engine.launched <= steps + 40


def test_what_a_failed_step_held_is_free_before_it_is_run_again() -> None:
    """Its frames would keep its tensors, whose memory the retry needs."""

    class Tensors:
        pass

    kept: list[weakref.ref[Tensors]] = []
    engine = FakeEngine()
    honest = engine.launch

    def failing() -> None:
        tensors = Tensors()
        kept.append(weakref.ref(tensors))
        raise OutOfMemory

    def launch(parts: Sequence[Part]) -> FakeFlight:
        if not kept:
            future: Future[None] = Inline().submit(failing)
            flight = honest(parts)
            flight.collect = future.result
            return flight
        assert kept[0]() is None
        return honest(parts)

    engine.launch = launch
    assert list(map(shown, served(engine, job(1, 10), job(2, 20)))) == [(1, (10,)), (2, (20,))]


def test_waiting_behind_the_older_step_is_no_computing() -> None:
    """Times and speed count from when the device was free."""
    seconds = count()
    loop = Loop(FakeEngine(), step_tokens=100, queued_tokens=1000, clock=lambda: float(next(seconds)))
    for each in (1, 2, 3):
        loop.submit(job(each, 100))
    outcomes = [answer.outcome for answer in loop.until_idle()]
    assert all(isinstance(outcome, JobResult) for outcome in outcomes)
    spans = [outcome.compute for outcome in outcomes if isinstance(outcome, JobResult)]
    waits = [outcome.queue for outcome in outcomes if isinstance(outcome, JobResult)]
    assert waits == sorted(waits)
    assert max(spans[1:]) <= spans[0]


class Device:
    """A clock, and an engine whose steps take `overhead` seconds and a second for `speed` tokens."""

    def __init__(self, speed: float = 100.0, overhead: float = 0.0) -> None:
        self.now, self.steps, self.engine = 0.0, list[int](), FakeEngine()
        honest = self.engine.launch

        def launch(parts: Sequence[Part]) -> FakeFlight:
            self.steps.append(sum(sum(part.progress.costs[part.start : part.stop]) for part in parts))
            self.now += overhead + self.steps[-1] / speed
            return honest(parts)

        self.engine.launch = launch

    def loop(self, **settings: float) -> Loop:
        given = {"step_tokens": 100, "queued_tokens": 10**9} | settings
        return Loop(self.engine, clock=lambda: self.now, **given)

    def warm_loop(self, **settings: float) -> Loop:
        """One that has computed a step, and has one of 100 tokens, a second, under way."""
        loop = self.loop(**settings)
        loop.submit(job(-1, *[10] * 10))
        list(loop.until_idle())
        loop.submit(job(-2, *[10] * 10))
        planned = loop.plan()
        assert planned is not None
        loop.launch(planned)
        self.now -= 1.0  # it has only begun
        return loop


def test_a_job_that_would_be_late_is_refused() -> None:
    """What is under way, what goes before it and itself count; who has more time, or a higher class, is taken."""
    loop = Device().warm_loop()
    loop.submit(job(1, *[10] * 50))
    with pytest.raises(Overloaded, match=r"500 tokens wait, .* take up to 6\.2 s, its deadline is in 3\.0 s") as late:
        loop.submit(job(2, 20, remaining=3.0))
    assert late.value.retry_after == pytest.approx(6.0, abs=0.05)
    loop.submit(job(3, 20, remaining=10.0))
    loop.submit(job(4, 20, remaining=4.0, priority=Priority.INTERACTIVE))
    assert loop.refused == {"deadline": 1}


def test_its_own_size_alone_refuses_no_job() -> None:
    """An idle worker takes it, whatever it predicts; it may be wrong."""
    device = Device()
    loop = device.loop(queued_tokens=10, queue_seconds=0.001)
    loop.submit(job(1, 100))
    list(loop.until_idle())
    loop.submit(job(2, *[10] * 50, remaining=1.0))
    assert [shown(answer) for answer in loop.until_idle()] == [(2, DeadlineExceeded)]


def test_a_job_that_would_wait_too_long_is_refused() -> None:
    """Though it has no deadline. Its own size does not count, nor do lower classes, nor what goes after it."""
    loop = Device().warm_loop(queue_seconds=10.0)
    loop.submit(job(1, *[10] * 1000))
    with pytest.raises(Overloaded, match=r"this job would wait up to .* s, the limit is 10 s") as refused:
        loop.submit(job(2, *[10] * 1000))
    assert refused.value.retry_after == 60.0
    loop.submit(job(3, *[10] * 10))
    loop.submit(job(4, *[10] * 1000, priority=Priority.INTERACTIVE))
    assert loop.refused == {"queue_seconds": 1}


def test_too_many_tokens_are_refused() -> None:
    """Those of jobs that are set aside count, since they take up room."""
    loop = Device().loop(queued_tokens=100)
    loop.submit(job(1, 60))
    loop.set_aside(1)
    assert (loop.load.queued_tokens, loop.load.backlogs, loop.plan(), loop.worth_a_launch) == (60, {}, None, False)
    with pytest.raises(Overloaded, match="60 tokens wait, this job has 50, the limit is 100") as refused:
        loop.submit(job(2, 50))
    assert (refused.value.retry_after, loop.refused) == (1.0, {"queued_tokens": 1})
    loop.bring_back(1)
    assert [shown(answer) for answer in loop.until_idle()] == [(1, (60,))]


def test_a_job_that_is_cancelled_before_it_is_computed_is_counted() -> None:
    """One that is under way, or answered, is not."""
    loop = Device().loop()
    for each in (1, 2):
        loop.submit(job(each, 100))
    loop.turn()
    assert [loop.cancel(each) for each in (1, 2, 2)] == [True, True, False]
    assert loop.cancelled_waiting == 1


@pytest.mark.parametrize("overhead", [0.0, 0.2])
def test_a_step_is_bounded_in_time(overhead: float) -> None:
    """Once the speed is known, whatever a step costs by itself; single requests in between make steps no shorter."""
    device = Device(speed=1000.0, overhead=overhead)
    loop = device.loop(step_tokens=5000, step_seconds=1.0)
    for each in range(50):
        loop.submit(job(each, 10))
        list(loop.until_idle())
    before = len(device.steps)
    loop.submit(job(100, *[10] * 5000))
    list(loop.until_idle())
    seconds = [overhead + tokens / 1000.0 for tokens in device.steps[before:]]
    assert max(seconds) <= 1.3
    assert all(each >= 0.7 for each in seconds[-20:-1])


def test_a_slow_device_computes_small_steps_but_not_tiny_ones() -> None:
    """A step has costs of its own."""
    device = Device(speed=10.0)
    loop = device.loop(step_tokens=5000, step_seconds=0.1)
    loop.submit(job(1, *[8] * 500))
    list(loop.until_idle())
    assert set(device.steps[:-1]) == {256}


def test_each_step_that_ended_is_observed() -> None:
    """Seconds, tokens, sequences."""
    seen: list[tuple[float, int, int]] = []
    observe: Callable[[float, int, int], None] = lambda *step: seen.append(step)  # noqa: E731
    device = Device()
    loop = Loop(device.engine, step_tokens=100, queued_tokens=1000, observe=observe, clock=lambda: device.now)
    loop.submit(job(1, *[10] * 15))
    list(loop.until_idle())
    assert [(tokens, sequences) for _, tokens, sequences in seen] == [(100, 10), (50, 5)]
    assert sum(each for each, _, _ in seen) == pytest.approx(1.5)


def test_jobs_are_planned_by_their_class_key_and_deadline() -> None:
    """As they say."""
    loop = Device().loop(step_tokens=10)
    loop.submit(job(1, 10, priority=Priority.BULK))
    loop.submit(job(2, *[10] * 10, key="a"))
    loop.submit(job(3, 10, key="b"))
    loop.submit(job(4, 10, key="c", remaining=1000.0))
    loop.submit(job(5, 10, priority=Priority.INTERACTIVE))
    order = [answer.id for answer in loop.until_idle()]
    assert order[:2] == [5, 4]
    assert order.index(3) < order.index(2)


def test_deadlines_of_answered_jobs_do_not_pile_up() -> None:
    """A day each; only jobs that are held count."""
    loop = Device().loop(queued_tokens=10**9)
    for number in range(1000):
        loop.submit(job(number, 1, remaining=86_400.0))
        list(loop.until_idle())
    assert len(loop._deadlines) < 100


def test_a_step_that_failed_tells_nothing_of_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took no time at all; later jobs would be promised the impossible."""
    device = Device()
    loop = device.loop()
    loop.submit(job(1, 100))
    list(loop.until_idle())
    before = loop.load.tokens_per_second

    def broken(parts: Sequence[Part]) -> FakeFlight:
        raise RuntimeError("a bug")

    monkeypatch.setattr(device.engine, "launch", broken)
    loop.submit(job(2, 100))
    assert [shown(answer) for answer in loop.until_idle()] == [(2, Internal)]
    assert loop.load.tokens_per_second == before

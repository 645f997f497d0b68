"""Devices that fail, stall or hang below the scheduler."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import pytest

from gpu_worker.schedule import driver
from gpu_worker.schedule.driver import DeviceLost, Driver
from gpu_worker.schedule.scheduler import Scheduler
from shared.errors import (
    GivenBack,
    Internal,
    WorkerUnavailable,
)
from support.references import eventually
from support.threaded_engine import FakeEngine, FakeProgress, ask, job, outcome, running_driver


class Broken(FakeEngine):
    """Fails at every step from some moment on, as CUDA does after some errors."""

    def __init__(self, device: Executor) -> None:
        super().__init__(device)
        self.broken = False

    def compute(self, chosen: list[tuple[FakeProgress, Sequence[int]]]) -> None:
        if self.broken:
            raise RuntimeError("an illegal memory access was encountered")
        super().compute(chosen)


async def test_a_device_that_fails_at_everything_is_lost(device: Executor) -> None:
    """The job that met it gets Internal; then the loop ends, so that the process can be started again."""
    engine = Broken(device)
    with ThreadPoolExecutor(1) as host:
        made = Driver(Scheduler(engine, step_tokens=100, queued_tokens=10_000), host, device_check=job(99, 1))
        running = asyncio.create_task(made.run())
        assert await outcome(ask(made, job(1, 5))) == (5,)
        engine.broken = True
        assert await outcome(ask(made, job(2, 5))) is Internal
        with pytest.raises(DeviceLost):
            await running


async def test_a_job_that_fails_alone_loses_no_device(device: Executor) -> None:
    """The probe that follows it succeeds."""
    engine = FakeEngine(device)
    async with running_driver(engine, device_check=job(99, 1)) as running:
        assert await outcome(ask(running, job(1, 13))) is Internal
        assert await outcome(ask(running, job(2, 5))) == (5,)
        assert any(identity == 99 for step in engine.steps for identity, _ in step)


async def test_a_stalled_step_is_told_and_serving_goes_on_after_it(
    device: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs are unavailable at once, new ones too; once it has ended, jobs are served again."""
    monkeypatch.setattr(driver, "LEAST_SECONDS", 0.5)  # a busy machine may keep an honest step for a tenth
    monkeypatch.setattr(driver, "WATCH_SECONDS", 0.01)
    engine, told = FakeEngine(device), asyncio.Queue[bool]()
    async with running_driver(engine) as running:
        watching = asyncio.create_task(running.watch(told.put))
        engine.gate.clear()
        hanging = ask(running, job(1, 5))
        assert await told.get() is True
        assert await outcome(hanging) is WorkerUnavailable
        assert "a step of 5 tokens" in running.load.stalled
        with pytest.raises(GivenBack, match="stalled"):
            ask(running, job(2, 5))
        engine.gate.set()
        assert await told.get() is False
        assert await outcome(ask(running, job(3, 5))) == (5,)
        watching.cancel()


async def test_a_step_that_never_ends_is_given_up(device: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch ends, and with it the process."""
    monkeypatch.setattr(driver, "LEAST_SECONDS", 0.05)
    monkeypatch.setattr(driver, "LOST_SECONDS", 0.1)
    monkeypatch.setattr(driver, "WATCH_SECONDS", 0.01)
    engine = FakeEngine(device)
    async with running_driver(engine) as running:
        engine.gate.clear()
        ask(running, job(1, 5))
        with pytest.raises(DeviceLost, match="a step of 5 tokens"):
            await running.watch(_nobody)


async def _nobody(stalls: bool) -> None:
    """Is told nothing."""


@pytest.mark.parametrize(
    ("seconds", "tokens", "speed", "late"),
    [(4.9, 10, 1000.0, False), (5.1, 10, 1000.0, True), (19, 2000, 1000.0, False), (21, 2000, 1000.0, True)],
)
def test_a_step_is_late_at_ten_times_what_its_tokens_predict(
    seconds: float, tokens: int, speed: float, late: bool
) -> None:
    """And not before five seconds."""
    assert (driver.overdue(seconds, tokens, speed) > 0) is late


def test_seconds_in_which_the_process_stood_still_are_no_seconds_of_a_step() -> None:
    """Of the same step all of them, of another one none; what a look comes late by is counted too."""
    pauses = driver.Pauses()
    looks = [(0.3, 0.5, 0.3), (8.8, 8.5, 0.8), (9.4, 0.6, 1.3), (17.9, 8.5, 1.8), (0.4, 0.5, 0.4), (0.2, 8.5, 0.0)]
    for seconds, slept, left in looks:
        assert pauses.left_out_of(seconds, slept=slept, planned=0.5, computed=0.01) == pytest.approx(left, abs=0.02)


@pytest.mark.parametrize("cores", [0, 1, 64])
def test_what_a_step_computes_while_no_look_is_possible_is_its_own(cores: int) -> None:
    """A thread that holds the interpreter's lock for eight seconds takes as many of a processor. A process that is
    stopped takes none, however many cores it had before."""
    for computed, left in [(cores * 0.5 + 8, 9.0), (cores * 0.5, 1.0)]:
        pauses = driver.Pauses()
        assert pauses.left_out_of(0.5, slept=0.5, planned=0.5, computed=cores * 0.5) == 0.5
        assert pauses.left_out_of(9.0, slept=8.5, planned=0.5, computed=computed) == pytest.approx(left)


async def test_a_step_that_keeps_all_others_from_running_is_late(
    device: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It computes, so its seconds are no pause of the process."""
    monkeypatch.setattr(driver, "LEAST_SECONDS", 0.5)
    monkeypatch.setattr(driver, "WATCH_SECONDS", 0.01)
    engine, told = FakeEngine(device), asyncio.Queue[bool]()
    async with running_driver(engine) as running:
        watching = asyncio.create_task(running.watch(told.put))
        engine.gate.clear()
        hanging = ask(running, job(1, 5))
        await eventually(lambda: running._scheduler.step_running is not None)
        end = time.process_time() + 1.0
        while time.process_time() < end:
            """Computes, and lets nothing else run."""
        assert await told.get() is True
        assert await outcome(hanging) is WorkerUnavailable
        engine.gate.set()
        watching.cancel()


async def test_a_pause_of_the_process_is_no_stalled_step(device: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the machine stands still: the job is answered, and nobody is told of a stall."""
    monkeypatch.setattr(driver, "LEAST_SECONDS", 0.5)
    monkeypatch.setattr(driver, "WATCH_SECONDS", 0.01)
    engine, told = FakeEngine(device), asyncio.Queue[bool]()
    async with running_driver(engine) as running:
        watching = asyncio.create_task(running.watch(told.put))
        engine.gate.clear()
        paused = ask(running, job(1, 5))
        await eventually(lambda: running._scheduler.step_running is not None)
        for _ in range(2):
            time.sleep(0.7)  # noqa: ASYNC251 - nothing of the loop runs
            await asyncio.sleep(0.02)
        engine.gate.set()
        assert await outcome(paused) == (5,)
        assert told.empty()
        watching.cancel()

"""A fake device whose steps take time by a clock of its own, for tests of the scheduler."""

from collections.abc import Sequence

from gpu_worker.schedule.interface import JobSlice
from gpu_worker.schedule.scheduler import Scheduler
from harness.synchronous_driver import advance, until_idle
from support.synchronous_engine import FakeEngine, FakeFlight, job


class Device:
    """A clock, and an engine whose steps take `overhead` seconds and a second for `speed` tokens."""

    def __init__(self, speed: float = 100.0, overhead: float = 0.0) -> None:
        self.now, self.steps, self.engine = 0.0, list[int](), FakeEngine()
        honest = self.engine.launch

        def launch(parts: Sequence[JobSlice]) -> FakeFlight:
            tokens = sum(sum(part.job.costs[part.start : part.stop]) for part in parts)
            self.steps.append(tokens)
            flight = honest(parts)
            collect = flight.collect

            def collect_then() -> None:
                self.now += overhead + tokens / speed
                collect()

            flight.collect = collect_then
            return flight

        self.engine.launch = launch

    def scheduler(self, **settings: float) -> Scheduler:
        given = {"step_tokens": 100, "queued_tokens": 10**9} | settings
        return Scheduler(self.engine, clock=lambda: self.now, **given)

    def warm_scheduler(self, **settings: float) -> Scheduler:
        """One that has computed a step, and has one of 100 tokens, a second, under way."""
        scheduler = self.scheduler(**settings)
        scheduler.submit(job(-1, *[10] * 10))
        list(until_idle(scheduler))
        scheduler.submit(job(-2, *[10] * 10))
        advance(scheduler)
        return scheduler

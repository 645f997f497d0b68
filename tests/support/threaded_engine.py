"""A fake engine that computes in a thread, and a driver of it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from gpu_worker.schedule.driver import Driver
from gpu_worker.schedule.interface import JobSlice, OutOfMemory
from gpu_worker.schedule.scheduler import Scheduler
from gpu_worker.schedule.steps import JobOutcome
from shared.errors import (
    InvalidInput,
    SelvageError,
)
from shared.jobs import Encode, Job, JobResult, RaggedTokens
from shared.vectors import OutputKind
from support.synchronous_engine import cut

WORK = Encode(outputs=frozenset({OutputKind.DENSE}), normalize=True, normalize_tokens=True)
MARK = 666


class FakeProgress:
    def __init__(self, job: Job, chunk: int = 0) -> None:
        self.job = job
        self.costs: Sequence[int] = job.tokens.lengths
        self.room: Sequence[int] = ()
        self.spared: Sequence[int] = ()
        if chunk:
            self.costs, self.room = cut(job.tokens.lengths, chunk)
        self.served: list[int] = []

    def result(self) -> JobResult:
        return JobResult(row_lengths=tuple(self.served))


class FakeFlight:
    """Arrives when it was computed; gives lengths to its jobs when it is collected."""

    def __init__(self, chosen: list[tuple[FakeProgress, Sequence[int]]], arrived: Future[None]) -> None:
        self.chosen, self.arrived, self.shared_tokens = chosen, arrived, 0

    def collect(self) -> None:
        self.arrived.result()
        for progress, costs in self.chosen:
            progress.served.extend(costs)


class FakeEngine:
    """Serves lengths, in pieces of at most `chunk` tokens (0: whole ones); a step whose tokens pass `room` is out of
    memory, a unit of length 13 is a bug."""

    def __init__(self, device: Executor, room: int = 10**9, chunk: int = 0) -> None:
        self.device, self.room, self.chunk = device, room, chunk
        self.steps: list[list[tuple[int, int]]] = []
        self.gate = threading.Event()
        self.gate.set()

    def open(self, job: Job) -> FakeProgress:
        if MARK in job.tokens.lengths:
            raise InvalidInput("refused at the door")
        return FakeProgress(job, self.chunk)

    def reclaim(self) -> None:
        """There is nothing to give back."""

    def launch(self, parts: Sequence[JobSlice]) -> FakeFlight:
        chosen = [(part.job, part.job.costs[part.start : part.stop]) for part in parts]
        return FakeFlight(chosen, self.device.submit(self.compute, chosen))

    def compute(self, chosen: list[tuple[FakeProgress, Sequence[int]]]) -> None:
        self.gate.wait()
        if sum(sum(costs) for _, costs in chosen) > self.room:
            raise OutOfMemory
        if any(13 in costs for _, costs in chosen):
            raise RuntimeError("a bug")
        self.steps.append([(progress.job.id, len(costs)) for progress, costs in chosen])


def job(identity: int, *lengths: int, remaining: float | None = None) -> Job:
    tokens = RaggedTokens.of([[0] * length for length in lengths])
    return Job(id=identity, work=WORK, tokens=tokens, remaining=remaining)


@asynccontextmanager
async def running_driver(engine: FakeEngine, device_check: Job | None = None, **options: Any) -> AsyncIterator[Driver]:
    with ThreadPoolExecutor(1) as host:
        scheduler = Scheduler(engine, **{"step_tokens": 100, "queued_tokens": 10_000} | options)
        made = Driver(scheduler, host, device_check)
        running = asyncio.create_task(made.run())
        yield made
        engine.gate.set()
        running.cancel()
        made.close()


def ask(running: Driver, asked: Job) -> asyncio.Future[JobOutcome]:
    """Raises what is known at once."""
    future: asyncio.Future[JobOutcome] = asyncio.get_running_loop().create_future()
    running.submit(asked, future.set_result)
    return future


async def outcome(future: asyncio.Future[JobOutcome]) -> tuple[int, ...] | type[SelvageError]:
    told = await future
    return type(told) if isinstance(told, SelvageError) else told.row_lengths

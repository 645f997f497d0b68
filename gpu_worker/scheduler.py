"""Queue -> plan -> the one device thread -> futures. Knows no torch and no gRPC.

The event loop only plans and delivers; every computation happens in the device thread, one step at a time.
"""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import structlog

from gpu_worker.flight import Engine, OutOfMemory, Part, Progress
from gpu_worker.planning import FairQueue
from shared.errors import (
    DeadlineExceeded,
    InputTooLarge,
    Internal,
    InvalidInput,
    Overloaded,
    SelvageError,
    WorkerUnavailable,
)
from shared.jobs import Job, JobResult

log = structlog.get_logger("scheduler")
SPEED_MEMORY = 0.9


@dataclass(slots=True, kw_only=True, eq=False)
class _Held:
    job: Job
    progress: Progress
    future: asyncio.Future[JobResult]
    submitted: float
    deadline: float | None
    unserved: int
    started: float | None = None
    finished: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy the worker is."""

    queued_tokens: int
    queued_jobs: int
    tokens_per_second: float


class Scheduler:
    """Accepts jobs and answers each exactly once: with a result or with one error."""

    def __init__(self, engine: Engine, device: Executor, *, step_tokens: int, queued_tokens: int) -> None:
        """`device`: the one thread that computes. `step_tokens`: budget of a step. `queued_tokens`: above it further
        jobs are refused.
        """
        self._engine = engine
        self._step_tokens = step_tokens
        self._queued_tokens = queued_tokens
        self._queue = FairQueue(quantum=max(1, step_tokens // 8))
        self._held: dict[int, _Held] = {}
        self._device = device
        self._work = asyncio.Event()
        self._speed = 0.0
        self._draining = False

    def submit(self, job: Job) -> asyncio.Future[JobResult]:
        """Takes a job; the future brings its result or its error. Raises what is known at once."""
        if self._draining:
            raise WorkerUnavailable("the worker is draining")
        if job.id in self._held:
            raise InvalidInput(f"a job with id {job.id} is held already", field="jobs")
        progress = self._engine.open(job)
        cost, waiting = sum(progress.costs), self._queue.waiting
        if waiting and waiting + cost > self._queued_tokens:
            retry_after = waiting / self._speed if self._speed else 1.0
            raise Overloaded(
                f"{waiting} tokens wait, this job has {cost}, the limit is {self._queued_tokens}",
                retry_after=min(max(retry_after, 0.1), 60.0),
            )
        self._queue.add(job.id, progress.costs)
        now = time.monotonic()
        future: asyncio.Future[JobResult] = asyncio.get_running_loop().create_future()
        self._held[job.id] = _Held(
            job=job,
            progress=progress,
            future=future,
            submitted=now,
            deadline=None if job.remaining is None else now + job.remaining,
            unserved=len(progress.costs),
        )
        self._work.set()
        return future

    def cancel(self, ids: Sequence[int]) -> int:
        """Drops jobs; returns how many of them were held. What is in the running step still ends with it."""
        known = [self._held[identity] for identity in ids if identity in self._held]
        for held in known:
            self._drop(held)
            held.future.cancel()
        return len(known)

    @property
    def load(self) -> Load:
        """Tokens and jobs that wait, and the recent speed."""
        return Load(queued_tokens=self._queue.waiting, queued_jobs=len(self._held), tokens_per_second=self._speed)

    async def run(self) -> None:
        """Serves until cancelled."""
        while True:
            await self._work.wait()
            self._drop_the_dead()
            shares = self._queue.next_step(self._step_tokens)
            if not shares:
                self._work.clear()
                continue
            step = [(self._held[share.job], share) for share in shares]
            parts = [Part(progress=held.progress, start=share.start, stop=share.stop) for held, share in step]
            await self._serve([held for held, _ in step], parts)

    def refuse(self) -> None:
        """Takes no new jobs; what is held goes on."""
        self._draining = True

    def close(self) -> None:
        """Fails what is still held."""
        self.refuse()
        for held in list(self._held.values()):
            self._fail(held, WorkerUnavailable("the worker is shutting down"))

    async def _serve(self, jobs: list[_Held], parts: list[Part]) -> None:
        start = time.monotonic()
        for held in jobs:
            held.started = start if held.started is None else held.started
        failures = await asyncio.get_running_loop().run_in_executor(self._device, self._compute, parts)
        end = time.monotonic()
        self._measure(sum(sum(each.progress.costs[each.start : each.stop]) for each in parts), end - start)
        for held, part in zip(jobs, parts, strict=True):
            held.finished = end
            held.unserved -= part.stop - part.start
            failure = next((error for failed, error in failures if failed is held.progress), None)
            if failure is not None:
                log.warning("job failed", job=held.job.id, reason=failure.reason)
                self._fail(held, failure)
            elif held.unserved == 0:
                self._finish(held)

    def _compute(self, parts: Sequence[Part]) -> list[tuple[Progress, SelvageError]]:
        """In the device thread: a step; if it fails, its parts apart, so that only the guilty job fails."""
        try:
            self._engine.step(parts)
            return []
        except SelvageError as error:
            failure = error
        except OutOfMemory:
            failure = InputTooLarge("the device ran out of memory on this input alone")
        except Exception as error:
            log.error("step failed", parts=len(parts), exc_info=error)
            failure = Internal("the step failed; the log of the worker has it")
        if len(parts) > 1:
            return [each for part in parts for each in self._compute([part])]
        part = parts[0]
        if isinstance(failure, InputTooLarge) and part.stop - part.start > 1:
            return self._compute_halves(part)
        return [(part.progress, failure)]

    def _compute_halves(self, part: Part) -> list[tuple[Progress, SelvageError]]:
        for half in part.halves():
            failures = self._compute([half])
            if failures:
                return failures
        return []

    def _measure(self, tokens: int, seconds: float) -> None:
        speed = tokens / max(seconds, 1e-6)
        self._speed = SPEED_MEMORY * self._speed + (1 - SPEED_MEMORY) * speed if self._speed else speed

    def _drop_the_dead(self) -> None:
        now = time.monotonic()
        for held in list(self._held.values()):
            if held.future.done():
                self._drop(held)
            elif held.deadline is not None and held.deadline <= now:
                self._fail(held, DeadlineExceeded("the deadline passed while the job waited"))

    def _drop(self, held: _Held) -> None:
        if self._held.get(held.job.id) is held:  # else another job has taken the id since
            self._queue.remove(held.job.id)
            del self._held[held.job.id]

    def _fail(self, held: _Held, error: SelvageError) -> None:
        self._drop(held)
        if not held.future.done():
            held.future.set_exception(error)

    def _finish(self, held: _Held) -> None:
        self._drop(held)
        if held.future.done():
            return
        try:
            outcome = held.progress.result()
        except SelvageError as error:
            held.future.set_exception(error)
            return
        except Exception as error:
            log.error("result failed", job=held.job.id, exc_info=error)
            held.future.set_exception(Internal("the result could not be made; the log of the worker has it"))
            return
        started = held.started or held.submitted
        queue, compute = started - held.submitted, held.finished - started
        held.future.set_result(replace(outcome, queue=queue, compute=compute))

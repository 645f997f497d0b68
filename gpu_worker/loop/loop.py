"""Submit, plan, launch, collect: the one loop of the worker, synchronous. Knows no torch, no asyncio and no gRPC.

Two steps at most are under way: while one is computed, the next is planned, packed and launched, and the one before is
answered. `turn` is the whole loop for whoever may wait. The scheduler calls its parts: `launch` and `gather` from a
thread if it likes, never two of them at once, all others from one thread only.
"""

import concurrent.futures
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import inf

from gpu_worker.loop.deadlines import Deadlines
from gpu_worker.loop.interface import JobSlice, StepEngine, StepHandle
from gpu_worker.loop.retries import Report, StepRetries, silent
from gpu_worker.loop.steps import FailedLaunch, HeldJob, JobAnswer, JobOutcome, LaunchedStep, PlannedStep
from gpu_worker.queue.admission import QueueAdmission, QueueLimits
from gpu_worker.queue.fair_queue import FairQueue
from gpu_worker.queue.pace import Pace
from shared.errors import DeadlineExceeded, Internal, InvalidInput, SelvageError
from shared.jobs import Job
from shared.load import Load

LEAD_SECONDS = 0.02
"""Before a step is expected to end, the next one may be launched: enough to pack it meanwhile."""
LEAST_TOKENS = 256
"""Of a step that is bounded in time: less would be mostly the step's own cost."""
Observe = Callable[[float, int, int], None]
"""Told of each step that ended: seconds, tokens, sequences."""


def unobserved(seconds: float, tokens: int, sequences: int) -> None:
    """Tells nobody."""


class Loop:
    """Takes jobs and answers each exactly once: with a result or with one error."""

    def __init__(
        self,
        engine: StepEngine,
        *,
        step_tokens: int,
        queued_tokens: int,
        queue_seconds: float = inf,
        step_seconds: float = 0.0,
        report: Report = silent,
        observe: Observe = unobserved,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`step_tokens`: most tokens of a step; `step_seconds`: how long it should take at most, 0 for no bound.

        `queued_tokens`, `queue_seconds`: above them further jobs are refused, see `QueueLimits`.
        """
        self._engine, self._report, self._observe, self._clock = engine, report, observe, clock
        self._step_tokens, self._step_seconds = step_tokens, step_seconds
        self._queue = FairQueue(quantum=max(1, step_tokens // 8))
        self._admission = QueueAdmission(QueueLimits(queued_tokens=queued_tokens, queue_seconds=queue_seconds))
        self._retries, self._pace = StepRetries(engine, report), Pace()
        self._held: dict[int, HeldJob] = {}
        self._deadlines = Deadlines()
        self._under_way: list[LaunchedStep] = []
        self._ended, self._budget = 0.0, min(step_tokens, LEAST_TOKENS) if step_seconds else step_tokens
        self.cancelled_waiting = 0
        """Jobs that were cancelled before anything of them was computed."""

    def submit(self, job: Job) -> None:
        """Takes a job. Raises what is known at once."""
        if job.id in self._held:
            raise InvalidInput(f"a job with id {job.id} is held already", field="jobs")
        progress = self._engine.open(job)
        now, own = self._clock(), self._queue.tokens_of(job.priority, job.key)
        self._admission.check(job, sum(progress.costs), self.load, own=own)
        deadline = inf if job.remaining is None else now + job.remaining
        self._queue.add(job.id, progress.costs, key=job.key, priority=job.priority, deadline=deadline)
        self._held[job.id] = HeldJob(job=job, progress=progress, submitted=now)
        if deadline < inf:
            self._deadlines.add(job.id, deadline)

    def cancel(self, identity: int) -> bool:
        """Drops a job without an answer; whether it was held. What is under way of it still ends with its step."""
        held = self._forget(identity)
        self.cancelled_waiting += held is not None and not held.planned
        return held is not None

    def set_aside(self, identity: int) -> None:
        """Computes no more of a job until it is brought back. What is under way of it still ends with its step."""
        self._queue.set_aside(identity)

    def bring_back(self, identity: int) -> None:
        """Goes on with a job that was set aside."""
        self._queue.bring_back(identity)

    def drop_expired(self) -> list[JobAnswer]:
        """Answers jobs whose deadline passed."""
        passed = [self._held[each] for each in self._deadlines.passed(self._clock())]
        return [self._answer(each, DeadlineExceeded("the deadline passed while the job waited")) for each in passed]

    def drop_all(self, error: SelvageError) -> list[JobAnswer]:
        """Answers all jobs that are held with one error."""
        return [self._answer(each, error) for each in list(self._held.values())]

    @property
    def queued(self) -> tuple[int, int]:
        """Tokens that wait; jobs that wait or are being computed. Other threads may ask, unlike for the load."""
        return self._queue.waiting + self._queue.aside, len(self._held)

    @property
    def load(self) -> Load:
        """What waits, and the recent speed. Jobs that are set aside count as queued, but not in the backlogs."""
        tokens, jobs = self.queued
        return Load(
            queued_tokens=tokens,
            queued_jobs=jobs,
            tokens_per_second=self._pace.speed(self._budget),
            backlogs=self._queue.backlogs(),
            turn=self._queue.turn,
            busy=self._seconds_under_way(self._clock()),
        )

    @property
    def refused(self) -> Counter[str]:
        """Jobs that were refused as too many, by reason."""
        return self._admission.refused

    @property
    def under_way(self) -> list[LaunchedStep]:
        """Steps that are launched and not gathered, the older first; two at most."""
        return self._under_way

    @property
    def running(self) -> tuple[float, int] | None:
        """For how many seconds the older step has been computed, and its tokens; None where none is."""
        if not self._under_way:
            return None
        older = self._under_way[0]
        return self._clock() - max(older.start, self._ended, older.retried), older.tokens

    @property
    def worth_a_launch(self) -> bool:
        """Whether the next step should be launched beside the one that computes.

        It should once a whole step waits. Less would leave out what comes meanwhile: single requests would be computed
        one by one for ever.
        """
        if not self._under_way:
            return self._queue.waiting > 0
        return self.may_launch and self._queue.waiting >= self._budget and self.launch_in <= 0

    @property
    def launch_in(self) -> float:
        """Seconds until a step may be launched beside the one that computes.

        Long steps are followed late: what comes meanwhile, such as an interactive job, need not wait for two of them.
        """
        return self._seconds_under_way(self._clock()) - LEAD_SECONDS

    @property
    def may_launch(self) -> bool:
        """Whether there is room for another step: two at most, and none behind one that is run again."""
        return len(self._under_way) < 2 and not any(each.suspect for each in self._under_way)

    def plan(self) -> PlannedStep | None:
        """Takes what the next step is made of; None where nothing waits."""
        shares = self._queue.next_step(self._budget)
        if not shares:
            return None
        jobs = [self._held[share.job] for share in shares]
        for held in jobs:
            held.planned = True
        parts = [
            JobSlice(progress=held.progress, start=share.start, stop=share.stop)
            for held, share in zip(jobs, shares, strict=True)
        ]
        return PlannedStep(jobs=jobs, parts=parts)

    def launch(self, planned: PlannedStep) -> None:
        """Hands a step to the engine, behind what is under way."""
        assert len(self._under_way) < 2
        start = self._clock()
        try:
            flight: StepHandle = self._engine.launch(planned.parts)
        except Exception as error:  # told when it is gathered, like what fails on the device
            flight = FailedLaunch(error)
        self._under_way.append(LaunchedStep(planned=planned, flight=flight, start=start, tokens=planned.tokens))

    def gather(self) -> list[tuple[HeldJob, JobOutcome]]:
        """Waits for the older step, gives its jobs their shares, and makes the results of those that end with it.

        A step that failed is run again in parts, so that only the guilty job fails.
        """
        launched = self._under_way[0]
        failures = dict(self._serve(launched))
        ended: list[tuple[HeldJob, JobOutcome]] = []
        for held, part in zip(launched.planned.jobs, launched.planned.parts, strict=True):
            error = failures.get(part)
            if error is not None:
                ended.append((held, error))
            elif part.last and self._held.get(held.job.id) is held:
                ended.append((held, self._result(held)))
        return ended

    def settle(self, ended: list[tuple[HeldJob, JobOutcome]]) -> list[JobAnswer]:
        """After `gather`: forgets the step, and answers the jobs that ended with it."""
        launched = self._under_way.pop(0)
        begin, end = max(launched.start, self._ended), self._clock()  # it was computed after the one before it
        for held in launched.planned.jobs:
            held.started = begin if held.started is None else held.started
        self._ended = end
        if not launched.failed:
            self._learn(launched, end - begin)
        return [
            self._answer(held, held.timed(outcome, end))
            for held, outcome in ended
            if self._held.get(held.job.id) is held  # else it was cancelled, or another job has taken the id since
        ]

    def turn(self) -> list[JobAnswer]:
        """One turn: launches the next step if any work waits, then answers the one before it."""
        answers = self.drop_expired()
        before = bool(self._under_way)
        planned = self.plan() if self.may_launch else None
        if planned is not None:
            self.launch(planned)
        if before:
            answers += self.settle(self.gather())
        return answers

    def until_idle(self) -> Iterator[JobAnswer]:
        """Turns until every job is answered."""
        while self._held or self._under_way:
            yield from self.turn()

    def _serve(self, launched: LaunchedStep) -> list[tuple[JobSlice, SelvageError]]:
        parts = launched.planned.parts
        if launched.suspect:
            concurrent.futures.wait([launched.flight.arrived])
            launched.failed = True
            return self._one_by_one(launched)
        failure = self._retries.collect(launched.flight, len(parts))
        if failure is None:
            return []
        launched.failed = True
        self._suspect_the_later(parts)
        if len(parts) == 1:
            return self._retries.smaller(parts[0], failure)
        return self._one_by_one(launched)

    def _one_by_one(self, launched: LaunchedStep) -> list[tuple[JobSlice, SelvageError]]:
        """Each part alone, whose job somebody still waits for; what failed. Each has the watchdog's time anew."""
        found = []
        for held, part in zip(launched.planned.jobs, launched.planned.parts, strict=True):
            if self._held.get(held.job.id) is held:
                launched.retried = self._clock()
                found += self._retries.again(part)
        return found

    def _suspect_the_later(self, failed: Sequence[JobSlice]) -> None:
        """Of the steps behind a failed one those that go on with its jobs."""
        jobs = {id(part.progress) for part in failed}
        for later in self._under_way[1:]:
            later.suspect = any(id(part.progress) in jobs for part in later.planned.parts)

    def _result(self, held: HeldJob) -> JobOutcome:
        try:
            return held.progress.result()
        except SelvageError as error:
            return error
        except Exception as error:
            self._report("result failed", error, 1)
            return Internal("the result could not be made; the log of the worker has it")

    def _answer(self, held: HeldJob, outcome: JobOutcome) -> JobAnswer:
        self._forget(held.job.id)
        return JobAnswer(id=held.job.id, outcome=outcome)

    def _forget(self, identity: int) -> HeldJob | None:
        self._queue.remove(identity)
        self._deadlines.forget(identity)
        return self._held.pop(identity, None)

    def _learn(self, launched: LaunchedStep, seconds: float) -> None:
        """From a step that ended: how fast they are, and how much the next one may hold."""
        self._pace.learn(launched.tokens, seconds)
        self._observe(seconds, launched.tokens, sum(part.stop - part.start for part in launched.planned.parts))
        if self._step_seconds:
            tokens = int(self._pace.best * self._step_seconds)
            self._budget = min(max(tokens, LEAST_TOKENS), self._step_tokens)

    def _seconds_under_way(self, now: float) -> float:
        """Until the steps that are launched end, as far as is known."""
        speed = self._pace.speed(self._budget)
        if not self._under_way or not speed:
            return 0.0
        begin = max(self._under_way[0].start, self._ended)
        return max(0.0, sum(each.tokens for each in self._under_way) / speed - (now - begin))

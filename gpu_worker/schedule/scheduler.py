"""The scheduler of the worker: it accepts jobs, decides what happens next, and answers jobs. No torch, asyncio or gRPC.

At most two steps are under way: while one is computed, the next is planned, packed and launched, and the one before is
collected. `next_action` alone decides; a driver carries it out and waits. `until_idle` is the synchronous driver,
`Driver` the asynchronous one. A driver may run `launch_step` and `collect_step` in another thread, one at a time, while
its own thread calls the other methods. `queued`, `refused` and `cancelled_waiting` may be read from any thread.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Required, TypedDict

from gpu_worker.schedule.admission import QueueAdmission, RecentWork
from gpu_worker.schedule.fair_queue import FairQueue
from gpu_worker.schedule.interface import JobSlice, OpenJob, StepEngine, StepHandle
from gpu_worker.schedule.pace import StepBudget
from gpu_worker.schedule.room import Room
from gpu_worker.schedule.steps import (
    EndedJob,
    FailedLaunch,
    JobOutcome,
    LaunchedStep,
    PlannedStep,
    Report,
    StepCollector,
    StepsUnderWay,
    silent,
)
from gpu_worker.schedule.unanswered_jobs import UnansweredJob, UnansweredJobs
from shared.errors import DeadlineExceeded, InvalidInput, SelvageError
from shared.jobs import Job, Priority
from shared.load import SHORT, TURNS_PER_STEP, Load

LOAD_SECONDS = 0.01
"""Seconds for which jobs of a step together are admitted by one load, while no step is planned: to make it takes longer
than to read it."""
COMING_SECONDS = 10.0
"""Seconds after which a short job that came counts a third in what keeps coming."""
LEAD_SECONDS = 0.02
"""Seconds before the expected end of a step at which the next one may be launched: enough to pack it."""


ObserveStep = Callable[[float, int, int], None]
"""A callback for every step that ended: its seconds, tokens and units."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The driver plans a step from what waits, and launches it."""


@dataclass(frozen=True, slots=True)
class Collect:
    """The driver collects the older step, which has arrived, and answers the jobs that end with it."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The driver waits until the older step arrives, a job comes, or `seconds` have passed (`inf`: no limit)."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Idle:
    """The driver waits until a job comes or one is late: no step is under way, and no job may be computed."""


Action = Launch | Collect | Wait | Idle


def unobserved(seconds: float, tokens: int, units: int) -> None:
    """Ignores the steps that ended."""


class Limits(TypedDict, total=False):
    """What a scheduler is told of the device and of its queue. Numbers are `inf` where there is no limit.

    `step_tokens`: most tokens of a step. `step_seconds`: longest duration of a step, see `StepBudget`.
    `queued_tokens`, `queue_seconds`: limits above which further jobs are refused, see `QueueAdmission`.
    `cache_bytes`: most bytes that the device keeps of texts in pieces. `chunk_tokens`: most tokens of a text that is
    not cut.
    """

    step_tokens: Required[int]
    queued_tokens: Required[int]
    queue_seconds: float
    step_seconds: float
    cache_bytes: float
    chunk_tokens: float


class Scheduler:
    """Accepts jobs and answers each exactly once: with a result or with one error."""

    def __init__(
        self,
        engine: StepEngine,
        *,
        step_tokens: int,
        queued_tokens: int,
        queue_seconds: float = inf,
        step_seconds: float = inf,
        cache_bytes: float = inf,
        chunk_tokens: float = inf,
        report: Report = silent,
        observe: ObserveStep = unobserved,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """See `Limits`."""
        self._engine, self._observe, self._clock = engine, observe, clock
        self._budget = StepBudget(step_tokens=step_tokens, step_seconds=step_seconds)
        quantum = max(1, step_tokens // TURNS_PER_STEP)
        self._queue: FairQueue[OpenJob] = FairQueue(quantum=quantum, room=cache_bytes, chunk=chunk_tokens)
        self._admission = QueueAdmission(queued_tokens=queued_tokens, queue_seconds=queue_seconds)
        self._coming = {priority: RecentWork(COMING_SECONDS) for priority in sorted(Priority)}  # of short jobs
        self._jobs = UnansweredJobs()
        self._recent: Load | None = None  # by which jobs are admitted until `_recent_end`
        self._recent_end, self._since = 0.0, 0  # tokens that came since it was made
        self._under_way = StepsUnderWay()
        self._collector = StepCollector(engine, self._under_way, self._jobs, report, clock)
        self.cancelled_waiting = 0
        """Number of jobs that were cancelled before any slice of them was planned."""

    def submit(self, job: Job) -> None:
        """Accepts a job. Raises the errors that are known at once."""
        if self._jobs.of(job.id) is not None:
            raise InvalidInput(f"a job with id {job.id} is held already", field="jobs")
        open_job = self._engine.open(job)
        now, cost = self._clock(), sum(open_job.costs)
        self._admit(job, cost, now)
        deadline = inf if job.remaining is None else now + job.remaining
        self._queue.add_job(
            open_job, open_job.costs, open_job.room, key=job.key, priority=job.priority, deadline=deadline
        )
        self._jobs.add(open_job, UnansweredJob(job=job, submitted=now, deadline=deadline))

    def _admit(self, job: Job, cost: int, now: float) -> None:
        """Raises Overloaded for a job that would wait too long. A worker with nothing to do takes any job."""
        if len(self._jobs):
            if self._recent is None or now > self._recent_end or self._since > self._recent.step_tokens:
                self._recent, self._recent_end, self._since = self.load, now + LOAD_SECONDS, 0
            of_key = self._queue.tokens_of_key(job.priority, job.key)
            self._admission.check_job(job, cost, self._recent, of_key=of_key, since=self._since)
        self._since += cost
        if cost < SHORT:
            self._coming[job.priority].add(cost, now)

    def cancel(self, identity: int) -> bool:
        """Drops a job without an outcome; False for an unknown one. Slices of it that are under way are computed."""
        cancelled = self._forget(identity)
        self.cancelled_waiting += cancelled is not None and not cancelled.planned
        return cancelled is not None

    def set_aside(self, identity: int) -> None:
        """Plans no more of a job until it is brought back; an unknown one is no error."""
        if (open_job := self._jobs.of(identity)) is not None:
            self._queue.set_aside(open_job)
            self._recent = None

    def bring_back(self, identity: int) -> None:
        """Goes on with a job that was set aside; an unknown one is no error."""
        if (open_job := self._jobs.of(identity)) is not None:
            self._queue.bring_back(open_job)
            self._recent = None

    def drop_expired(self) -> list[EndedJob]:
        """Ends the jobs whose deadline has passed."""
        expired = self._jobs.take_expired(self._clock())
        if not expired:
            return []
        late = DeadlineExceeded("the deadline passed before the job was done")
        return [self._end_job(identity, late) for identity in expired]

    @property
    def seconds_to_deadline(self) -> float:
        """Seconds after which `drop_expired` should be called at the latest; `inf` where no job may be late."""
        return self._jobs.seconds_to_deadline(self._clock())

    def drop_all(self, error: SelvageError) -> list[EndedJob]:
        """Ends all jobs with one error."""
        return [self._end_job(identity, error) for identity in self._jobs.ids]

    @property
    def queued(self) -> tuple[int, int]:
        """Tokens that wait, and jobs without an outcome. May be read from other threads, unlike `load`."""
        return self._queue.waiting_tokens + self._queue.tokens_unserved, len(self._jobs)

    @property
    def room(self) -> Room[OpenJob]:
        """What the device keeps of long texts, and who waits for room. Its numbers may be read from other threads."""
        return self._queue.room

    @property
    def budget(self) -> int:
        """Most tokens that the next step may have. May be read from other threads."""
        return self._budget.tokens

    @property
    def load(self) -> Load:
        """What waits, and the current speed. Jobs that are set aside count as queued, but not in the backlogs;
        those that wait for room count in both."""
        (tokens, jobs), now, speed = self.queued, self._clock(), self._budget.speed
        return Load(
            queued_tokens=tokens,
            queued_jobs=jobs,
            tokens_per_second=speed,
            backlogs=self._queue.backlogs(),
            turn=self._queue.largest_turn,
            busy=self._under_way.seconds_left(now, speed),
            express_tokens=self._queue.express_tokens(self.budget, self._budget.express_pays),
            step_tokens=self.budget,
            coming=[recent.rate(now) for recent in self._coming.values()],
        )

    @property
    def told_load(self) -> Load:
        """The load for frontends, which count all tokens of texts, those too that are shared and cost less."""
        return self.load.in_texts(self._budget.texts_ratio)

    @property
    def refused(self) -> Counter[str]:
        """Number of jobs that were refused by admission, by reason."""
        return self._admission.refused

    @property
    def step_running(self) -> tuple[float, int] | None:
        """Seconds that the older step has been computed for, and its extent; None where no step is under way."""
        return self._under_way.running(self._clock())

    @property
    def older_step(self) -> LaunchedStep | None:
        """The step that is collected next; None where no step is under way."""
        return self._under_way.older

    def next_action(self) -> Action:
        """Decides what a driver does next.

        A second step is launched in two cases: a whole step waits and the first should end soon; or the first has
        arrived and anything waits, and then before the first is collected. Never while a step is suspect. An earlier
        launch would leave out jobs that come meanwhile: single requests would be computed one by one, and an
        interactive job would wait for two steps.
        """
        waiting, older = self._queue.waiting_tokens, self._under_way.older
        if older is None:
            return Launch() if waiting else Idle()
        if not self._under_way.may_launch:
            return Collect() if older.arrived else Wait(inf)
        if older.arrived:
            return Launch() if waiting else Collect()
        seconds = self._under_way.seconds_left(self._clock(), self._budget.speed) - LEAD_SECONDS
        if seconds > 0:
            return Wait(seconds)
        return Launch() if waiting >= self.budget else Wait(inf)

    def plan_step(self) -> PlannedStep | None:
        """Takes the slices of the next step from the queue; None where all that waits must wait for room."""
        self._recent = None
        units = self._queue.next_step(self.budget, express_pays=self._budget.express_pays)
        if not units:
            return None
        for job in units:
            self._jobs.plan(job)
        return PlannedStep(slices=[JobSlice(job=job, start=part.start, stop=part.stop) for job, part in units.items()])

    def launch_step(self, planned: PlannedStep) -> LaunchedStep:
        """Hands a step to the engine, behind the one that is under way. Returns it as launched."""
        start = self._clock()
        try:
            handle: StepHandle = self._engine.launch(planned.slices)
        except Exception as error:  # reported when the step is collected, like an error of the device
            handle = FailedLaunch(error)
        launched = LaunchedStep(planned=planned, handle=handle, start=start, tokens=planned.tokens)
        self._under_way.append(launched)
        return launched

    def collect_step(self) -> dict[OpenJob, JobOutcome]:
        """Waits for the older step. Returns the results of the jobs that end with it.

        The slices of a failed step are run again, each alone, so that only the guilty job fails.
        """
        return self._collector.collect_older()

    def end_step(self, outcomes: dict[OpenJob, JobOutcome]) -> list[EndedJob]:
        """Forgets the step that was collected, and ends the jobs with an outcome."""
        end = self._clock()
        launched, begin = self._under_way.end_older(end)
        if not launched.failed:
            spared, computed = launched.planned.spared, launched.computed_tokens
            self._budget.learn(launched.tokens, end - begin, spared=spared, computed=computed)
            self._observe(end - begin, launched.tokens, launched.planned.units)
        ended = []
        for job_slice in launched.planned.slices:
            open_job = job_slice.job
            unanswered = self._jobs.record_of(open_job)
            if unanswered is None:  # the job ended meanwhile: cancelled, late, or dropped
                continue
            if job_slice.returned_room:
                self._queue.give_back_room(open_job, job_slice.returned_room)
            unanswered.started = begin if unanswered.started is None else unanswered.started
            outcome = outcomes.get(open_job)
            if outcome is not None:
                ended.append(self._end_job(unanswered.job.id, unanswered.timed(outcome, end)))
        return ended

    def advance(self) -> list[EndedJob]:
        """Carries out the next action. Returns the jobs that ended."""
        return self.drop_expired() + self._perform(self.next_action())

    def until_idle(self) -> Iterator[EndedJob]:
        """Carries out one action after the other until no job is left that may be computed."""
        while True:
            yield from self.drop_expired()
            action = self.next_action()
            if isinstance(action, Idle):
                return
            yield from self._perform(action)

    def _perform(self, action: Action) -> list[EndedJob]:
        """Carries out an action, and waits for it. Returns the jobs that ended."""
        match action:
            case Launch():
                planned = self.plan_step()
                if planned is not None:
                    self.launch_step(planned)
            case Collect():
                return self.end_step(self.collect_step())
            case Wait(seconds=seconds):
                assert self._under_way.older is not None
                self._under_way.older.wait(seconds)
        return []

    def _end_job(self, identity: int, outcome: JobOutcome) -> EndedJob:
        self._forget(identity)
        return EndedJob(id=identity, outcome=outcome)

    def _forget(self, identity: int) -> UnansweredJob | None:
        """Drops all records of a job, and returns the one of it; None for an unknown job."""
        if (open_job := self._jobs.of(identity)) is None:
            return None
        self._queue.remove_job(open_job)
        self._recent = None
        return self._jobs.remove(identity)

"""The scheduler of the worker: it accepts jobs, decides what happens next, and answers jobs. No torch, asyncio or gRPC.

At most two steps are under way: while one is computed, the next is planned, packed and launched, and the one before is
collected. `next_action` alone decides; a driver carries it out and waits. A driver may run `launch_step` and
`collect_step` in another thread, one at a time, while its own thread calls the other methods. `queued`, `refused` and
`cancelled_waiting` may be read from any thread.
"""

import heapq
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from gpu_worker.schedule.fair_queue import FairQueue, Room
from gpu_worker.schedule.interface import JobSlice, OpenJob, StepEngine
from gpu_worker.schedule.load import RecentWork, StepBudget, refusal
from gpu_worker.schedule.steps import EndedJob, EndedStep, JobOutcome, LaunchedStep, PlannedStep, StepsUnderWay
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
STALE_ENTRIES = 64
"""Deadlines of jobs that ended which are kept in any case, besides as many as there are jobs."""


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


@dataclass(slots=True, kw_only=True, eq=False)
class UnansweredJob:
    """A job that was accepted and has no outcome yet. Times are seconds of the scheduler's clock.

    `planned`: whether any slice of it was planned. `started`: when the first step with a slice of it began.
    """

    job: Job
    open_job: OpenJob
    submitted: float
    deadline: float
    planned: bool = False
    started: float | None = None

    def timed(self, outcome: JobOutcome, end: float) -> JobOutcome:
        """Adds the seconds that the job waited and was computed to its result. Errors stay as they are."""
        if isinstance(outcome, SelvageError):
            return outcome
        started = self.submitted if self.started is None else self.started
        outcome.queue, outcome.compute = started - self.submitted, end - started
        return outcome


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """What a scheduler is told of the device and of its queue; numbers are `inf` where there is no limit.

        `step_tokens`: most tokens of a step. `step_seconds`: longest duration of a step, see `StepBudget`.
        `queued_tokens`, `queue_seconds`: limits above which further jobs are refused, see `refusal`.
        `cache_bytes`: most bytes that the device keeps of texts in pieces. `chunk_tokens`: most tokens of a text that
        is not cut. `clock`: seconds that never go back; all times of jobs and steps are read from it.
        """
        self.step_tokens = step_tokens
        self._engine, self._clock = engine, clock
        self._budget = StepBudget(step_tokens=step_tokens, step_seconds=step_seconds)
        quantum = max(1, step_tokens // TURNS_PER_STEP)
        self._queue: FairQueue[OpenJob] = FairQueue(quantum=quantum, room=cache_bytes, chunk=chunk_tokens)
        self._queued_tokens, self._queue_seconds = queued_tokens, queue_seconds
        self._coming = {priority: RecentWork(COMING_SECONDS) for priority in sorted(Priority)}  # of short jobs
        self._jobs: dict[int, UnansweredJob] = {}  # by id, in the order in which they came
        self._unanswered: dict[OpenJob, UnansweredJob] = {}
        self._deadlines: list[tuple[float, int]] = []  # heap of deadline and id, also of jobs that ended
        self._recent: Load | None = None  # by which jobs are admitted until `_recent_end`
        self._recent_end, self._since = 0.0, 0  # tokens that came since it was made
        self._under_way = StepsUnderWay(engine, self._unanswered, clock)
        self.refused = Counter[str]()
        """Number of jobs that were refused on arrival, by reason."""
        self.cancelled_waiting = 0
        """Number of jobs that were cancelled before any slice of them was planned."""

    def submit(self, job: Job) -> None:
        """Accepts a job. Raises the errors that are known at once."""
        if job.id in self._jobs:
            raise InvalidInput(f"a job with id {job.id} is held already", field="jobs")
        open_job = self._engine.open(job)
        now, cost = self._clock(), sum(open_job.costs)
        self._admit(job, cost, now)
        deadline = inf if job.remaining is None else now + job.remaining
        self._queue.add_job(
            open_job, open_job.costs, open_job.room, key=job.key, priority=job.priority, deadline=deadline
        )
        unanswered = UnansweredJob(job=job, open_job=open_job, submitted=now, deadline=deadline)
        self._jobs[job.id] = self._unanswered[open_job] = unanswered
        if deadline < inf:
            heapq.heappush(self._deadlines, (deadline, job.id))

    def _admit(self, job: Job, cost: int, now: float) -> None:
        """Raises Overloaded for a job that would wait too long. A worker with nothing to do takes any job."""
        if self._jobs:
            if self._recent is None or now > self._recent_end or self._since > self._recent.step_tokens:
                self._recent, self._recent_end, self._since = self.load, now + LOAD_SECONDS, 0
            refused = refusal(
                job,
                cost,
                self._recent,
                queued_tokens=self._queued_tokens,
                queue_seconds=self._queue_seconds,
                of_key=self._queue.tokens_of_key(job.priority, job.key),
                since=self._since,
            )
            if refused is not None:
                reason, error = refused
                self.refused[reason] += 1
                raise error
        self._since += cost
        if cost < SHORT:
            self._coming[job.priority].add(cost, now)

    def cancel(self, identity: int) -> None:
        """Drops a job without an outcome; an unknown one is no error. Slices of it that are under way are computed."""
        if identity in self._jobs:
            self.cancelled_waiting += not self._forget(identity).planned

    def set_aside(self, identity: int) -> None:
        """Plans no more of a job until it is brought back; an unknown one is no error."""
        if (unanswered := self._jobs.get(identity)) is not None:
            self._queue.set_aside(unanswered.open_job)
            self._recent = None

    def bring_back(self, identity: int) -> None:
        """Goes on with a job that was set aside; an unknown one is no error."""
        if (unanswered := self._jobs.get(identity)) is not None:
            self._queue.bring_back(unanswered.open_job)
            self._recent = None

    def drop_expired(self) -> list[EndedJob]:
        """Ends the jobs whose deadline has passed."""
        now, ended = self._clock(), list[EndedJob]()
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, identity = heapq.heappop(self._deadlines)
            unanswered = self._jobs.get(identity)
            if unanswered is not None and unanswered.deadline == deadline:  # else its job has ended
                late = DeadlineExceeded("the deadline passed before the job was done")
                ended.append(self._end_job(identity, late))
        return ended

    @property
    def seconds_to_deadline(self) -> float:
        """Seconds after which `drop_expired` should be called at the latest; `inf` where no job may be late."""
        return max(0.0, self._deadlines[0][0] - self._clock()) if self._deadlines else inf

    def drop_all(self, error: SelvageError) -> list[EndedJob]:
        """Ends all jobs with one error."""
        return [self._end_job(identity, error) for identity in list(self._jobs)]

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
    def speed(self) -> float:
        """Tokens a second in a full step; 0 before the first step."""
        return self._budget.speed

    @property
    def load(self) -> Load:
        """What waits, and the current speed. Jobs that are set aside count as queued, but not in the backlogs;
        those that wait for room count in both."""
        (tokens, jobs), now, speed = self.queued, self._clock(), self.speed
        return Load(
            queued_tokens=tokens,
            queued_jobs=jobs,
            tokens_per_second=speed,
            backlogs=self._queue.backlogs(),
            turn=self._queue.largest_turn,
            busy=self._under_way.seconds_left(speed),
            express_tokens=self._queue.express_tokens(self.budget, self._budget.express_pays),
            step_tokens=self.budget,
            coming=[recent.rate(now) for recent in self._coming.values()],
        )

    @property
    def told_load(self) -> Load:
        """The load for frontends, which count all tokens of texts, those too that are shared and cost less."""
        return self.load.in_texts(self._budget.texts_ratio)

    @property
    def step_running(self) -> tuple[float, int] | None:
        """Seconds that the older step has been computed for, and its extent; None where no step is under way."""
        return self._under_way.running

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
        seconds = self._under_way.seconds_left(self.speed) - LEAD_SECONDS
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
            self._unanswered[job].planned = True
        return PlannedStep(
            slices=[JobSlice(job=job, start=served.start, stop=served.stop) for job, served in units.items()]
        )

    def launch_step(self, planned: PlannedStep) -> LaunchedStep:
        """Hands a step to the engine, behind the one that is under way. Returns it as launched."""
        return self._under_way.launch(planned)

    def collect_step(self) -> dict[OpenJob, JobOutcome]:
        """Waits for the older step. Returns the results of the jobs that end with it, and the errors of jobs."""
        return self._under_way.collect_older()

    def end_step(self, outcomes: Mapping[OpenJob, JobOutcome]) -> EndedStep:
        """Forgets the step that was collected, and ends the jobs with an outcome."""
        launched, begin, end = self._under_way.end_older()
        planned, seconds = launched.planned, end - begin
        if not launched.failed:
            self._budget.learn(planned.tokens, seconds, spared=planned.spared, computed=launched.computed_tokens)
        ended = []
        for job_slice in planned.slices:
            unanswered = self._unanswered.get(job_slice.job)
            if unanswered is None:  # the job ended meanwhile: cancelled, late, or dropped
                continue
            if job_slice.returned_room:
                self._queue.give_back_room(job_slice.job, job_slice.returned_room)
            unanswered.started = begin if unanswered.started is None else unanswered.started
            outcome = outcomes.get(job_slice.job)
            if outcome is not None:
                ended.append(self._end_job(unanswered.job.id, unanswered.timed(outcome, end)))
        return EndedStep(
            jobs=ended, seconds=seconds, tokens=planned.tokens, units=planned.units, failed=launched.failed
        )

    def _end_job(self, identity: int, outcome: JobOutcome) -> EndedJob:
        self._forget(identity)
        return EndedJob(id=identity, outcome=outcome)

    def _forget(self, identity: int) -> UnansweredJob:
        """Drops all records of a job, and returns the one of it."""
        # This is safe while another thread collects a step with a slice of the job. That thread reaches the open job
        # through the step, not through these records, and only looks up whether the job is unanswered: at worst it
        # makes a result for nobody. `end_step`, in this thread, then finds no record and answers nobody. Records and
        # outcomes belong to the open job, not to its id, so a new job of the same id gets nothing of the old one.
        # `test_a_job_may_be_cancelled_while_its_step_is_collected` holds it.
        unanswered = self._jobs.pop(identity)
        del self._unanswered[unanswered.open_job]
        self._queue.remove_job(unanswered.open_job)
        self._recent = None
        if len(self._deadlines) > 2 * len(self._jobs) + STALE_ENTRIES:  # else those of jobs that ended would pile up
            pending = [(job.deadline, identity) for identity, job in self._jobs.items() if job.deadline < inf]
            heapq.heapify(pending)
            self._deadlines = pending
        return unanswered

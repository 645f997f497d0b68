"""Steps, from their plan until they are collected; what failed is run again. Knows no torch, no asyncio and no gRPC."""

import traceback
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property

from gpu_worker.schedule.interface import JobSlice, OpenJob, OutOfMemory, StepEngine, StepHandle
from shared.errors import InputTooLarge, Internal, SelvageError
from shared.jobs import JobResult

BRIEF_TOKENS, BRIEF_UNITS = 4096, 128
"""Steps of at most so many tokens and units are packed and collected in about a millisecond."""
MOST_UNDER_WAY = 2
"""Most steps under way: while one is computed, another one is packed or collected."""
JobOutcome = JobResult | SelvageError


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """A job that ended, by its id, and its outcome."""

    id: int
    outcome: JobOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """An error that nobody expects, in a step of so many `parts` or in one result.

    `trace` is text: the error itself would keep the tensors of its frames alive.
    """

    event: str
    trace: str
    parts: int

    @classmethod
    def of(cls, event: str, error: Exception, parts: int) -> "Bug":
        """Reads the traceback of an error."""
        return cls(event=event, trace="".join(traceback.format_exception(error)).rstrip(), parts=parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedStep:
    """A step that ended, and the `jobs` that ended with it.

    `failed`: slices of it were run again, so its `seconds` say nothing of `tokens` and `units`.
    """

    jobs: Sequence[EndedJob]
    seconds: float
    tokens: int
    units: int
    failed: bool


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """The job slices of one step, at most one slice of a job."""

    slices: list[JobSlice]

    @cached_property
    def tokens(self) -> int:
        """Cost of the step."""
        return sum(job_slice.tokens for job_slice in self.slices)

    @cached_property
    def spared(self) -> int:
        """Tokens of texts that the step does not cost."""
        return sum(job_slice.spared for job_slice in self.slices)

    @cached_property
    def units(self) -> int:
        """Number of units in the step."""
        return sum(job_slice.units for job_slice in self.slices)

    @property
    def extent(self) -> int:
        """Cost of the step, and of all texts that it goes on with."""
        return sum(job_slice.extent for job_slice in self.slices)

    @cached_property
    def brief(self) -> bool:
        """Whether packing and collecting the step take about a millisecond."""
        completed = max((len(job_slice.job.costs) for job_slice in self.slices if job_slice.last), default=0)
        output_tokens = sum(job_slice.output_tokens for job_slice in self.slices)
        return output_tokens <= BRIEF_TOKENS and max(self.units, completed) <= BRIEF_UNITS


@dataclass(slots=True, kw_only=True, eq=False)
class LaunchedStep:
    """A step that is under way.

    `suspect`: an earlier step failed, whose rows this one may have missed, so it is run again. `failed`: its duration
    says nothing about the speed. `retried`: when the slice that is run alone now was launched. `bugs`: those so far.
    """

    planned: PlannedStep
    handle: StepHandle
    start: float
    suspect: bool = False
    failed: bool = False
    retried: float = 0.0
    bugs: list[Bug] = field(default_factory=list)

    @property
    def computed_tokens(self) -> int:
        """The step's cost but for all tokens that it does not compute."""
        return self.planned.tokens + self.planned.spared - self.handle.shared_tokens

    @property
    def arrived(self) -> bool:
        """Whether the step is on the host, or has failed."""
        return self.handle.arrived.done()

    @property
    def sound(self) -> bool:
        """Whether the step has arrived and need not be run again."""
        return self.arrived and not self.suspect and self.handle.arrived.exception() is None


class FailedLaunch:
    """The handle of a step that could not be launched."""

    def __init__(self, error: Exception) -> None:
        self._error, self.shared_tokens = error, 0
        self.arrived: Future[None] = Future()
        self.arrived.set_exception(error)

    def collect(self) -> None:
        raise self._error


def launch(engine: StepEngine, slices: Sequence[JobSlice]) -> StepHandle:
    """Hands a step to an engine. An error is raised when the step is collected, like an error of the device."""
    try:
        return engine.launch(slices)
    except Exception as error:
        return FailedLaunch(error)


class StepsUnderWay:
    """At most two steps, which the device computes in the order of their launch: the older and the later one.

    `launch` and `collect_older` may run in another thread, one at a time. Jobs that are not `unanswered` any more get
    nothing.
    """

    def __init__(self, engine: StepEngine, unanswered: Container[OpenJob], clock: Callable[[], float]) -> None:
        self._engine, self._unanswered, self._clock = engine, unanswered, clock
        self._steps: list[LaunchedStep] = []
        self._ended = 0.0

    @property
    def older(self) -> LaunchedStep | None:
        """The step that is collected next, or None."""
        return self._steps[0] if self._steps else None

    @property
    def may_launch(self) -> bool:
        """Whether another step may be launched: none may behind a suspect step, which will be run again."""
        return len(self._steps) < MOST_UNDER_WAY and not any(step.suspect for step in self._steps)

    def launch(self, planned: PlannedStep) -> LaunchedStep:
        """Hands a step to the engine, behind the one that is under way. Returns it as launched."""
        assert len(self._steps) < MOST_UNDER_WAY
        start = self._clock()
        launched = LaunchedStep(planned=planned, handle=launch(self._engine, planned.slices), start=start)
        self._steps.append(launched)
        return launched

    def collect_older(self) -> dict[OpenJob, JobOutcome]:
        """Waits for the older step. Returns the results of the jobs that end with it, and the errors of jobs.

        The slices of a failed step are run again, each alone, so that only the guilty job fails.
        """
        launched = self._steps[0]
        outcomes: dict[OpenJob, JobOutcome] = dict(self._collect(launched))
        for job_slice in launched.planned.slices:
            job = job_slice.job
            if job_slice.last and job not in outcomes and job in self._unanswered:
                outcomes[job] = _result_of(job, launched.bugs)
        return outcomes

    def end_older(self) -> tuple[LaunchedStep, float, float]:
        """Removes the older step, which was collected. Returns it, when the device began it, and when it ended."""
        step = self._steps.pop(0)
        begin, self._ended = self._begin(step), self._clock()
        return step, begin, self._ended

    @property
    def running(self) -> tuple[float, int] | None:
        """Seconds that the older step has been computed for, and its extent in tokens; None where there is no step."""
        if not self._steps:
            return None
        older = self._steps[0]
        return self._clock() - max(self._begin(older), older.retried), older.planned.extent

    def seconds_left(self, speed: float) -> float:
        """Seconds until all steps should end, at `speed` tokens a second; 0 while the speed is unknown."""
        if not self._steps or not speed:
            return 0.0
        tokens = sum(step.planned.tokens for step in self._steps)
        return max(0.0, tokens / speed - (self._clock() - self._begin(self._steps[0])))

    def _begin(self, step: LaunchedStep) -> float:
        """Estimates when the device began the older step: at its launch, or when the step before it ended."""
        return max(step.start, self._ended)

    def _collect(self, launched: LaunchedStep) -> dict[OpenJob, SelvageError]:
        """Collects a step, and runs it again where it failed. Returns the errors of jobs."""
        slices = launched.planned.slices
        if launched.suspect:  # what it computed counts for nothing
            release_frames(launched.handle.arrived.exception())
            launched.failed = True
            return self._run_slices_alone(launched)
        failure = self._failure_of(launched.handle, len(slices), launched.bugs)
        if failure is None:
            return {}
        launched.failed, failed = True, {job_slice.job for job_slice in slices}
        for later in self._steps[1:]:
            later.suspect = any(job_slice.job in failed for job_slice in later.planned.slices)
        if len(slices) > 1:
            return self._run_slices_alone(launched)
        error = self._run_halves(slices[0], failure, launched.bugs)
        return {slices[0].job: error} if error is not None else {}

    def _run_slices_alone(self, launched: LaunchedStep) -> dict[OpenJob, SelvageError]:
        """Runs the slices of a step again, each alone. Returns the errors of jobs. The watchdog times each slice."""
        errors = {}
        for job_slice in launched.planned.slices:
            if job_slice.job in self._unanswered:
                launched.retried = self._clock()
                error = self._run_alone(job_slice, launched.bugs)
                if error is not None:
                    errors[job_slice.job] = error
        return errors

    def _run_alone(self, job_slice: JobSlice, bugs: list[Bug]) -> SelvageError | None:
        """Runs a slice in a step of its own, no other step under way behind it. Returns the error of its job."""
        failure = self._failure_of(launch(self._engine, [job_slice]), 1, bugs)
        return None if failure is None else self._run_halves(job_slice, failure, bugs)

    def _run_halves(self, job_slice: JobSlice, failure: SelvageError, bugs: list[Bug]) -> SelvageError | None:
        """Runs a slice by halves after it failed alone, if it ran out of memory and can be cut."""
        if not isinstance(failure, InputTooLarge) or job_slice.units == 1:
            return failure
        for half in job_slice.halves():
            error = self._run_alone(half, bugs)
            if error is not None:
                return error
        return None

    def _failure_of(self, handle: StepHandle, parts: int, bugs: list[Bug]) -> SelvageError | None:
        """Collects a step of so many slices. Returns the error that its jobs get, or None."""
        try:
            handle.collect()
        except SelvageError as error:
            return error
        except OutOfMemory as error:
            release_frames(error)
            self._engine.reclaim()
            return InputTooLarge("the device ran out of memory on this input alone")
        except Exception as error:
            bugs.append(Bug.of("step failed", error, parts))
            release_frames(error)
            return Internal("the step failed; the log of the worker has it")
        return None


def _result_of(job: OpenJob, bugs: list[Bug]) -> JobOutcome:
    """Makes the result of a job, or its error."""
    try:
        return job.result()
    except SelvageError as error:
        return error
    except Exception as error:
        bugs.append(Bug.of("result failed", error, 1))
        return Internal("the result could not be made; the log of the worker has it")


def release_frames(error: BaseException | None) -> None:
    """Frees what the frames of an error hold: a failed step's tensors, whose memory its retries need."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None  # a caller's frame, which it reaches, may hold the future that holds the error
        error = error.__cause__ or error.__context__

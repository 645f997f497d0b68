"""Steps, from their plan until they are collected; what failed is run again. Knows no torch, no asyncio and no gRPC."""

import traceback
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import TypeVar

from gpu_worker.schedule.interface import JobSlice, OpenJob, OutOfMemory, StepEngine, StepHandle
from shared.errors import InputTooLarge, Internal, SelvageError
from shared.jobs import JobResult

BRIEF_TOKENS, BRIEF_UNITS = 4096, 128
"""Steps of at most so many tokens and units are packed and collected in about a millisecond."""
MOST_UNDER_WAY = 2
"""Most steps under way: while one is computed, another one is packed or collected."""
JobOutcome = JobResult | SelvageError
Report = Callable[[str, Exception, int], None]
"""A callback for bugs: what went wrong, the error, and how many slices the step had."""
R = TypeVar("R")


def silent(event: str, error: Exception, parts: int) -> None:
    """Ignores the bugs that are reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """A job that ended, by its id, and its outcome."""

    id: int
    outcome: JobOutcome


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
    says nothing about the speed. `retried`: when the slice that is run alone now was launched.
    """

    planned: PlannedStep
    handle: StepHandle
    start: float
    tokens: int
    suspect: bool = False
    failed: bool = False
    retried: float = 0.0

    @property
    def computed_tokens(self) -> int:
        """The step's cost but for all tokens that it does not compute."""
        return self.tokens + self.planned.spared - self.handle.shared_tokens

    @property
    def arrived(self) -> bool:
        """Whether the step is on the host, or has failed."""
        return self.handle.arrived.done()

    @property
    def sound(self) -> bool:
        """Whether the step has arrived and need not be run again."""
        return self.arrived and not self.suspect and self.handle.arrived.exception() is None

    def wait(self, seconds: float = inf) -> None:
        """Waits until the step has arrived, at most so long."""
        with suppress(TimeoutError):
            self.handle.arrived.exception(timeout=None if seconds == inf else seconds)


class FailedLaunch:
    """The handle of a step that could not be launched."""

    def __init__(self, error: Exception) -> None:
        self._error, self.shared_tokens = error, 0
        self.arrived: Future[None] = Future()
        self.arrived.set_exception(error)

    def collect(self) -> None:
        raise self._error


class StepsUnderWay:
    """At most two steps, which the device computes in the order of their launch: the older and the later one."""

    def __init__(self) -> None:
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

    def append(self, step: LaunchedStep) -> None:
        """Adds a step that was launched."""
        assert len(self._steps) < MOST_UNDER_WAY
        self._steps.append(step)

    def end_older(self, now: float) -> tuple[LaunchedStep, float]:
        """Removes the older step, which ended `now`. Returns it, and when the device began it."""
        step = self._steps.pop(0)
        begin, self._ended = self._begin(step), now
        return step, begin

    def mark_later_suspect(self, failed: Sequence[OpenJob]) -> None:
        """Marks later steps as suspect that go on with a job of the older step, which failed."""
        for later in self._steps[1:]:
            later.suspect = any(job_slice.job in failed for job_slice in later.planned.slices)

    def running(self, now: float) -> tuple[float, int] | None:
        """Seconds that the older step has been computed for, and its extent in tokens; None where there is no step."""
        if not self._steps:
            return None
        older = self._steps[0]
        return now - max(self._begin(older), older.retried), older.planned.extent

    def seconds_left(self, now: float, speed: float) -> float:
        """Seconds until all steps should end, at `speed` tokens a second; 0 while the speed is unknown."""
        if not self._steps or not speed:
            return 0.0
        return max(0.0, sum(step.tokens for step in self._steps) / speed - (now - self._begin(self._steps[0])))

    def _begin(self, step: LaunchedStep) -> float:
        """When the device began the older step: at its launch, or when the step before it ended."""
        return max(step.start, self._ended)


class StepRetries:
    """Collects steps, and runs slices again with no other step under way behind them."""

    def __init__(self, engine: StepEngine, report: Report) -> None:
        self._engine, self._report = engine, report

    def launch_alone(self, job_slice: JobSlice) -> StepHandle:
        """Launches a step of one slice. An error at launch is raised when the step is collected."""
        try:
            return self._engine.launch([job_slice])
        except Exception as error:
            return FailedLaunch(error)

    def collect_step(self, handle: StepHandle, parts: int) -> SelvageError | None:
        """Collects a step of so many slices. Returns the error that its jobs get, or None."""
        try:
            handle.collect()
        except SelvageError as error:
            return error
        except OutOfMemory as error:
            _release_frames(error)
            self._engine.reclaim()
            return InputTooLarge("the device ran out of memory on this input alone")
        except Exception as error:
            self._report("step failed", error, parts)
            _release_frames(error)
            return Internal("the step failed; the log of the worker has it")
        return None

    def discard_step(self, handle: StepHandle) -> None:
        """Waits for a step whose results count for nothing, and frees what its error holds, if it failed."""
        _release_frames(handle.arrived.exception())

    def run_alone(self, job_slice: JobSlice) -> SelvageError | None:
        """Runs a slice in a step of its own. Returns the error of its job, or None."""
        failure = self.collect_step(self.launch_alone(job_slice), 1)
        return None if failure is None else self.run_halves(job_slice, failure)

    def run_halves(self, job_slice: JobSlice, failure: SelvageError) -> SelvageError | None:
        """Runs a slice by halves after it failed alone, if it ran out of memory and can be cut."""
        if not isinstance(failure, InputTooLarge) or job_slice.units == 1:
            return failure
        for half in job_slice.halves():
            error = self.run_alone(half)
            if error is not None:
                return error
        return None


class StepCollector:
    """Collects steps, in whatever thread calls it. Jobs that are not `unanswered` any more get nothing."""

    def __init__(
        self,
        engine: StepEngine,
        under_way: StepsUnderWay,
        unanswered: Container[OpenJob],
        report: Report,
        clock: Callable[[], float],
    ) -> None:
        self._under_way, self._unanswered, self._report, self._clock = under_way, unanswered, report, clock
        self._retries = StepRetries(engine, report)

    def collect_older(self) -> dict[OpenJob, JobOutcome]:
        """Waits for the older step. Returns the results of the jobs that end with it.

        The slices of a failed step are run again, each alone, so that only the guilty job fails.
        """
        launched = self._under_way.older
        assert launched is not None
        outcomes: dict[OpenJob, JobOutcome] = dict(self._collect(launched))
        for job_slice in launched.planned.slices:
            job = job_slice.job
            if job_slice.last and job not in outcomes and job in self._unanswered:
                outcomes[job] = self._made(job.result)
        return outcomes

    def _collect(self, launched: LaunchedStep) -> dict[OpenJob, SelvageError]:
        """Collects a step, and runs it again where it failed. Returns the errors of jobs."""
        slices = launched.planned.slices
        if launched.suspect:  # what it computed counts for nothing
            self._retries.discard_step(launched.handle)
            launched.failed = True
            return self._run_slices_alone(launched)
        failure = self._retries.collect_step(launched.handle, len(slices))
        if failure is None:
            return {}
        launched.failed = True
        self._under_way.mark_later_suspect([job_slice.job for job_slice in slices])
        if len(slices) > 1:
            return self._run_slices_alone(launched)
        error = self._retries.run_halves(slices[0], failure)
        return {slices[0].job: error} if error is not None else {}

    def _run_slices_alone(self, launched: LaunchedStep) -> dict[OpenJob, SelvageError]:
        """Runs the slices of a step again, each alone. Returns the errors of jobs. The watchdog times each slice."""
        errors = {}
        for job_slice in launched.planned.slices:
            if job_slice.job in self._unanswered:
                launched.retried = self._clock()
                error = self._retries.run_alone(job_slice)
                if error is not None:
                    errors[job_slice.job] = error
        return errors

    def _made(self, make: Callable[[], R]) -> R | SelvageError:
        """Makes a result, or the error of its job."""
        try:
            return make()
        except SelvageError as error:
            return error
        except Exception as error:
            self._report("result failed", error, 1)
            return Internal("the result could not be made; the log of the worker has it")


def _release_frames(error: BaseException | None) -> None:
    """Frees what the frames of an error hold: a failed step's tensors, whose memory its retries need."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None  # a caller's frame, which it reaches, may hold the future that holds the error
        error = error.__cause__ or error.__context__

"""The loop's records of jobs and steps, from a step's plan until it is collected. No torch, asyncio or gRPC."""

from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from gpu_worker.loop.interface import JobSlice, StepHandle
from shared.errors import SelvageError
from shared.jobs import Job, JobResult

BRIEF_TOKENS, BRIEF_UNITS = 4096, 128
"""Steps of at most so many tokens and units are packed and collected in about a millisecond."""
JobOutcome = JobResult | SelvageError


@dataclass(frozen=True, slots=True)
class JobPart:
    """What leaves of a job's result before the job ends."""

    result: JobResult


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """A job that ended, by its id, and its outcome."""

    id: int
    outcome: JobOutcome


@dataclass(slots=True, kw_only=True, eq=False)
class UnansweredJob:
    """A job that was accepted and has no outcome yet. Times are seconds of the loop's clock.

    `planned`: whether any slice of it was planned. `started`: when the first step with
    a slice of it began.
    """

    job: Job
    submitted: float
    planned: bool = False
    started: float | None = None

    def timed(self, outcome: JobOutcome, end: float) -> JobOutcome:
        """Adds the seconds that the job waited and was computed to its result. Errors stay as they are."""
        if isinstance(outcome, SelvageError):
            return outcome
        started = self.submitted if self.started is None else self.started
        return replace(outcome, queue=started - self.submitted, compute=end - started)


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

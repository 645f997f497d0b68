"""What the loop holds of a job, and of a step from its plan to its answers. Knows no torch, no asyncio and no gRPC."""

from concurrent.futures import Future
from dataclasses import dataclass, replace

from gpu_worker.loop.interface import JobSlice, RunningJob, StepHandle
from shared.errors import SelvageError
from shared.jobs import Job, JobResult

BRIEF_TOKENS, BRIEF_UNITS = 4096, 128
JobOutcome = JobResult | SelvageError


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAnswer:
    """The one answer of a job, by its id."""

    id: int
    outcome: JobOutcome


@dataclass(slots=True, kw_only=True, eq=False)
class HeldJob:
    """A job that was taken and has no answer yet; times by the loop's clock, in seconds.

    `planned`: something of it was launched; `started`: when the first step that it was in began.
    """

    job: Job
    progress: RunningJob
    submitted: float
    planned: bool = False
    started: float | None = None

    def timed(self, outcome: JobOutcome, end: float) -> JobOutcome:
        """With how long it waited and was computed, if it did not fail."""
        if isinstance(outcome, SelvageError):
            return outcome
        started = self.submitted if self.started is None else self.started
        return replace(outcome, queue=started - self.submitted, compute=end - started)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """What is to be computed in one step."""

    jobs: list[HeldJob]
    parts: list[JobSlice]

    @property
    def tokens(self) -> int:
        """Costs of all parts."""
        return sum(sum(part.progress.costs[part.start : part.stop]) for part in self.parts)

    @property
    def brief(self) -> bool:
        """Whether packing and answering it take a millisecond or so."""
        units = sum(part.stop - part.start for part in self.parts)
        answered = max((len(part.progress.costs) for part in self.parts if part.last), default=0)
        return self.tokens <= BRIEF_TOKENS and max(units, answered) <= BRIEF_UNITS


@dataclass(slots=True, kw_only=True, eq=False)
class LaunchedStep:
    """A step that is under way. `suspect`: one before it failed, whose rows it may have missed, so it is run again.

    `failed`: its time tells nothing of its tokens. `retried`: when the part that is run alone now began.
    """

    planned: PlannedStep
    flight: StepHandle
    start: float
    tokens: int
    suspect: bool = False
    failed: bool = False
    retried: float = 0.0

    @property
    def sound(self) -> bool:
        """Whether it has arrived and need not be run again."""
        return self.flight.arrived.done() and not self.suspect and self.flight.arrived.exception() is None


class FailedLaunch:
    """A step that could not be launched."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.arrived: Future[None] = Future()
        self.arrived.set_exception(error)

    def collect(self) -> None:
        raise self._error

"""Between the loop and whoever computes: what a step is made of, and what is under way. Knows no torch and no gRPC."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from shared.jobs import Job, JobResult


class OutOfMemory(Exception):
    """The device had no room for a step; nothing of it was delivered."""


class RunningJob(Protocol):
    """A job on its way: how its units are to be served, and what came of them.

    `costs` are in tokens, in the order in which the units want to be served.
    """

    costs: Sequence[int]

    def result(self) -> JobResult:
        """The outcome once every unit was served; may raise the job's own error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSlice:
    """Places `start` to `stop` of a job's order, to be computed in one step."""

    progress: RunningJob
    start: int
    stop: int

    @property
    def last(self) -> bool:
        """Whether the job ends with it."""
        return self.stop == len(self.progress.costs)

    def halves(self) -> list["JobSlice"]:
        """The same in two parts, in order."""
        middle = (self.start + self.stop) // 2
        ranges = ((self.start, middle), (middle, self.stop))
        return [JobSlice(progress=self.progress, start=start, stop=stop) for start, stop in ranges]


class StepHandle(Protocol):
    """A step that was launched. `arrived` is done when its shipment is on the host, or when it failed."""

    arrived: "Future[Any]"

    def collect(self) -> None:
        """Waits, and gives every job of the step its share. Raises OutOfMemory, or what the step raised: then nothing
        was given. Twice does no harm.
        """


class StepEngine(Protocol):
    """What computes. Steps are computed in the order of their launches."""

    def open(self, job: Job) -> RunningJob:
        """Checks a job and lays out its order. Raises the job's own error."""

    def launch(self, parts: Sequence[JobSlice]) -> StepHandle:
        """Packs a step, hands it to the device, and waits for nothing. Raises OutOfMemory."""

    def reclaim(self) -> None:
        """Gives back memory that is kept for nobody, before a step that had too little is run again in parts."""

"""Between the scheduler and whoever computes: what a step is made of. Knows no torch and no gRPC."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.jobs import Job, JobResult


class OutOfMemory(Exception):
    """The device had no room for a step; nothing of it was delivered."""


class Progress(Protocol):
    """A job on its way: how its sequences are to be served, and what came of them.

    `costs` are in tokens, in the order in which the sequences want to be served.
    """

    costs: Sequence[int]

    def result(self) -> JobResult:
        """The outcome once every sequence was served; may raise the job's own error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Places `start` to `stop` of a job's order, to be computed in one step."""

    progress: Progress
    start: int
    stop: int

    def halves(self) -> list["Part"]:
        """The same in two parts, in order."""
        middle = (self.start + self.stop) // 2
        ranges = ((self.start, middle), (middle, self.stop))
        return [Part(progress=self.progress, start=start, stop=stop) for start, stop in ranges]


class Engine(Protocol):
    """What computes. `step` runs in the device thread only."""

    def open(self, job: Job) -> Progress:
        """Checks a job and lays out its order. Raises the job's own error."""

    def step(self, parts: Sequence[Part]) -> None:
        """Computes and delivers all parts, or raises and has delivered nothing."""

"""The contract between the scheduler and an engine: jobs, slices of them, and steps. Knows no torch and no gRPC."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from shared.errors import SelvageError
from shared.jobs import Job, JobResult

ObserveJob = Callable[[Job, JobResult | SelvageError], None]
"""Receives each job and its outcome when the job is answered."""


class OutOfMemory(Exception):
    """The device had no memory for a step. What its jobs received is overwritten when they run again."""


class OpenJob(Protocol):
    """A job while it is computed: the cost of each of its units, and what was computed so far. Hashed by identity.

    `costs` are in tokens, in the order in which the units are to be computed. `room` says by unit how many bytes it
    keeps on the device from its start on, or gives back at its end where the number is negative; empty where none does.
    The pieces of a text are the units from one that takes room to the next one that gives it back. `spared`: how many
    tokens the texts of each unit have that it does not cost, since they share them; empty where none do.
    """

    costs: Sequence[int]
    room: Sequence[int]
    spared: Sequence[int]

    def result(self) -> JobResult:
        """Makes the result once every unit was computed. May raise the job's own error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSlice:
    """The part of a job that one step computes: units `start` to `stop` of the job's order."""

    job: OpenJob
    start: int
    stop: int

    @property
    def units(self) -> int:
        """Number of units in the slice."""
        return self.stop - self.start

    @property
    def tokens(self) -> int:
        """Cost of the slice."""
        return sum(self.job.costs[self.start : self.stop])

    @property
    def extent(self) -> int:
        """Cost of the slice and of the whole text that it goes on with, since its tokens attend to earlier pieces."""
        goes_on = sum(self.job.room[: self.start]) > 0
        return self.tokens + (self._text_cost(self.start) if goes_on else 0)

    @property
    def output_tokens(self) -> int:
        """Tokens of the texts of the slice, and cost of those in pieces that end with it, since outputs are made of
        whole texts."""
        ends = [unit for unit in range(self.start, self.stop) if self.job.room and self.job.room[unit] < 0]
        return self.tokens + self.spared + sum(map(self._text_cost, ends))

    @property
    def spared(self) -> int:
        """Tokens of the texts of the slice that it does not cost."""
        return sum(self.job.spared[self.start : self.stop])

    def _text_cost(self, unit: int) -> int:
        """Cost of all pieces of the text that a unit is a piece of."""
        room, first, last = self.job.room, unit, unit
        while room[first] <= 0:
            first -= 1
        while room[last] >= 0:
            last += 1
        return sum(self.job.costs[first : last + 1])

    @property
    def returned_room(self) -> int:
        """Bytes that the device keeps no longer once the slice was computed."""
        return -sum(min(0, room) for room in self.job.room[self.start : self.stop])

    @property
    def last(self) -> bool:
        """Whether the job is complete once this slice was computed."""
        return self.stop == len(self.job.costs)

    def halves(self) -> list["JobSlice"]:
        """Cuts the slice in two, in order."""
        middle = (self.start + self.stop) // 2
        ranges = ((self.start, middle), (middle, self.stop))
        return [JobSlice(job=self.job, start=start, stop=stop) for start, stop in ranges]


class StepHandle(Protocol):
    """A step that was launched and is not collected yet.

    `arrived` is done when the step's download is on the host, or when the step failed. `shared_tokens`: how many tokens
    of its texts the step does not compute, since another of its texts has them.
    """

    arrived: "Future[Any]"
    shared_tokens: int

    def collect(self) -> None:
        """Waits for the step and hands every job what was computed for it. Calling it again is harmless.

        Raises OutOfMemory, or the step's own error. What jobs received by then is overwritten when they run again.
        """


class StepEngine(Protocol):
    """The engine as the scheduler sees it. Steps are computed in the order in which they are launched."""

    def open(self, job: Job) -> OpenJob:
        """Validates a job and opens it. Raises the job's own error."""

    def launch(self, slices: Sequence[JobSlice]) -> StepHandle:
        """Packs the slices into a step and hands it to the device, without waiting. Raises OutOfMemory."""

    def reclaim(self) -> None:
        """Frees cached device memory before a step that ran out of memory is run again in smaller steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """The state of a worker at one moment; each part of the worker fills in its fields.

    `refused`: jobs so far, by reason; `cancelled_waiting`: jobs so far; `unsent`: bytes of answers that frontends have
    not read; `memory`: bytes of the device by state, empty on a processor; `padding`: tokens so far by which steps were
    filled up to the size of a captured graph; `budget`: most tokens that the next step may have; `pieces`: of long
    texts, so far; `shared_tokens`: those that were not computed so far, since another text of their step has them;
    `kept_bytes`: room that texts in pieces have for their keys and values, of `cache_bytes` in all, 0 where no text is
    cut; `waiting_for_cache`: jobs whose next text waits until its keys and values have room.
    """

    queued_tokens: int
    queued_jobs: int
    refused: Mapping[str, int]
    cancelled_waiting: int
    stalled: bool
    unsent: int = 0
    frontends: int = 0
    memory: Mapping[str, int] = field(default_factory=dict)
    padding: int = 0
    budget: int = 0
    pieces: int = 0
    shared_tokens: int = 0
    kept_bytes: int = 0
    cache_bytes: int = 0
    waiting_for_cache: int = 0

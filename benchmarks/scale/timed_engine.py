"""An engine that computes nothing: its steps take a set time by the event loop's clock. Knows no torch and no gRPC."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from gpu_worker.schedule.interface import JobSlice
from shared.errors import UnsupportedTask
from shared.jobs import Encode, Job, JobResult, Rows
from shared.vectors import OutputKind

BYTE = b"\1"
"""What all numbers are made of: repeated, it is a finite number above 0 in every data type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The seconds of a step: `overhead`, and its tokens at `speed` tokens a second; a `speed` of 0 takes no time."""

    speed: float = 0.0
    overhead: float = 0.0

    def seconds(self, tokens: int) -> float:
        """Seconds of a step of so many tokens."""
        return self.overhead + (tokens / self.speed if self.speed else 0.0)


class TimedJob:
    """A job of a timed engine; see `OpenJob`. Its vectors have the right sizes and mean nothing."""

    room: Sequence[int] = ()
    spared: Sequence[int] = ()

    def __init__(self, job: Job, width: int) -> None:
        """`width`: numbers of a row. Raises UnsupportedTask for all but vectors of texts or of tokens."""
        if not isinstance(job.work, Encode):
            raise UnsupportedTask("a timed worker makes vectors only", field="method")
        self.costs: Sequence[int] = job.tokens.lengths
        self._job, self._work, self._width = job, job.work, width

    def result(self) -> JobResult:
        """As many rows, in the type, as were asked for."""
        tokens, outputs = self._job.tokens, self._work.outputs
        dense = self._rows(len(tokens)) if OutputKind.DENSE in outputs else None
        by_token = self._rows(tokens.total) if OutputKind.MULTI_VECTOR in outputs else None
        return JobResult(dense=dense, tokens=by_token, row_lengths=tokens.lengths if by_token else ())

    def _rows(self, count: int) -> Rows:
        data_type, width = self._work.data_type, self._work.dimensions or self._width
        data, scales = (BYTE * (count * size) for size in (data_type.row_bytes(width), data_type.scale_bytes))
        return Rows(dimensions=width, data=data, scales=scales)


class TimedStep:
    """A step that is on the host once its time has passed; see `StepHandle`."""

    def __init__(self) -> None:
        self.shared_tokens = 0
        self.arrived: Future[None] = Future()

    def collect(self) -> None:
        """There is nothing to hand out: jobs make their results alone."""


class TimedEngine:
    """Computes one step after the other, each for as long as `time` says. Launched on the event loop's thread."""

    def __init__(self, time: StepTime, width: int) -> None:
        """`width`: numbers of a row."""
        self._time, self._width, self._free = time, width, 0.0

    def open(self, job: Job) -> TimedJob:
        """Opens a job, which needs no check but its kind. Raises UnsupportedTask."""
        return TimedJob(job, self._width)

    def launch(self, slices: Sequence[JobSlice]) -> TimedStep:
        """Begins when the step before ends."""
        event_loop, step = asyncio.get_running_loop(), TimedStep()
        seconds = self._time.seconds(sum(job_slice.tokens for job_slice in slices))
        if not seconds:
            step.arrived.set_result(None)
            return step
        self._free = max(event_loop.time(), self._free) + seconds
        event_loop.call_at(self._free, step.arrived.set_result, None)
        return step

    def reclaim(self) -> None:
        """There is no memory to give back."""

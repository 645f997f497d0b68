"""Runs the slices of a failed step again, each alone. Knows no torch, no asyncio and no gRPC."""

import traceback
from collections.abc import Callable

from gpu_worker.loop.interface import JobSlice, OutOfMemory, StepEngine, StepHandle
from gpu_worker.loop.steps import FailedLaunch
from shared.errors import InputTooLarge, Internal, SelvageError

Report = Callable[[str, Exception, int], None]
"""A callback for bugs: what went wrong, the error, and how many slices the step had."""


def silent(event: str, error: Exception, parts: int) -> None:
    """Ignores the bugs that are reported."""


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


def _release_frames(error: BaseException | None) -> None:
    """Frees what the frames of an error hold: a failed step's tensors, whose memory its retries need."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None  # a caller's frame, which it reaches, may hold the future that holds the error
        error = error.__cause__ or error.__context__

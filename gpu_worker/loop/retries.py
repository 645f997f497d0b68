"""What is done about a step that failed: its parts are run again alone. Knows no torch, no asyncio and no gRPC."""

import traceback
from collections.abc import Callable

from gpu_worker.loop.interface import JobSlice, OutOfMemory, StepEngine, StepHandle
from gpu_worker.loop.steps import FailedLaunch
from shared.errors import InputTooLarge, Internal, SelvageError

Report = Callable[[str, Exception, int], None]
"""Told what went wrong, by what error, and in a step of how many parts."""


def silent(event: str, error: Exception, parts: int) -> None:
    """Tells nobody."""


class StepRetries:
    """Collects flights, and runs parts again without anything beside them."""

    def __init__(self, engine: StepEngine, report: Report) -> None:
        self._engine, self._report = engine, report

    def launch(self, part: JobSlice) -> StepHandle:
        """A part by itself; what fails of that is told when it is collected."""
        try:
            return self._engine.launch([part])
        except Exception as error:
            return FailedLaunch(error)

    def collect(self, flight: StepHandle, parts: int) -> SelvageError | None:
        """Waits for a flight; the error that its jobs get, or None."""
        try:
            flight.collect()
        except SelvageError as error:
            return error
        except OutOfMemory as error:
            _let_go(error)
            self._engine.reclaim()
            return InputTooLarge("the device ran out of memory on this input alone")
        except Exception as error:
            self._report("step failed", error, parts)
            _let_go(error)
            return Internal("the step failed; the log of the worker has it")
        return None

    def again(self, part: JobSlice) -> list[tuple[JobSlice, SelvageError]]:
        """A part by itself; what failed of it."""
        failure = self.collect(self.launch(part), 1)
        return [] if failure is None else self.smaller(part, failure)

    def smaller(self, part: JobSlice, failure: SelvageError) -> list[tuple[JobSlice, SelvageError]]:
        """After a part failed by itself: by halves, where memory was what was missing."""
        if isinstance(failure, InputTooLarge) and part.stop - part.start > 1:
            for half in part.halves():
                for _, error in self.again(half):
                    return [(part, error)]
            return []
        return [(part, failure)]


def _let_go(error: BaseException | None) -> None:
    """Frees what the frames of an error hold: a failed step's tensors, whose memory its retries need."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__

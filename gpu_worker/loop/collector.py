"""Collects the older step: the results of jobs that end with it, and its slices once more where it failed. No torch."""

from collections.abc import Callable, Container
from typing import TypeVar

from gpu_worker.loop.interface import OpenJob, PartedJob, StepEngine
from gpu_worker.loop.retries import Report, StepRetries
from gpu_worker.loop.steps import JobOutcome, JobPart, LaunchedStep
from gpu_worker.loop.under_way import StepsUnderWay
from shared.errors import Internal, SelvageError

R = TypeVar("R")


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

    def collect_older(self) -> dict[OpenJob, JobOutcome | JobPart]:
        """Waits for the older step. Returns the results of the jobs that end with it, and parts of others.

        The slices of a failed step are run again, each alone, so that only the guilty job fails.
        """
        launched = self._under_way.older
        assert launched is not None
        outcomes: dict[OpenJob, JobOutcome | JobPart] = dict(self._collect(launched))
        for job_slice in launched.planned.slices:
            job = job_slice.job
            if job in outcomes or job not in self._unanswered:
                continue
            if job_slice.last:
                outcomes[job] = self._made(job.result)
            elif isinstance(job, PartedJob) and (part := self._made(job.take_part)) is not None:
                outcomes[job] = part if isinstance(part, SelvageError) else JobPart(part)
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

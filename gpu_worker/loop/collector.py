"""Collects the older step: the results of jobs that end with it, and its slices once more where it failed. No torch."""

from collections.abc import Callable, Container

from gpu_worker.loop.interface import OpenJob, StepEngine
from gpu_worker.loop.retries import Report, StepRetries
from gpu_worker.loop.steps import JobOutcome, LaunchedStep
from gpu_worker.loop.under_way import StepsUnderWay
from shared.errors import Internal, SelvageError


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
                outcomes[job] = self._result(job)
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

    def _result(self, job: OpenJob) -> JobOutcome:
        """Makes the result of a job, or its error."""
        try:
            return job.result()
        except SelvageError as error:
            return error
        except Exception as error:
            self._report("result failed", error, 1)
            return Internal("the result could not be made; the log of the worker has it")

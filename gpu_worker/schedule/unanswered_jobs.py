"""The records of jobs that have no outcome yet, and their deadlines. No torch, asyncio or gRPC."""

import heapq
from dataclasses import dataclass, replace
from math import inf

from gpu_worker.schedule.interface import OpenJob
from gpu_worker.schedule.steps import JobOutcome
from shared.errors import SelvageError
from shared.jobs import Job

STALE_ENTRIES = 64
"""Deadlines of jobs that ended which are kept in any case, besides as many as there are jobs."""


@dataclass(slots=True, kw_only=True, eq=False)
class UnansweredJob:
    """A job that was accepted and has no outcome yet. Times are seconds of the scheduler's clock.

    `planned`: whether any slice of it was planned. `started`: when the first step with a slice of it began.
    """

    job: Job
    submitted: float
    deadline: float = inf
    planned: bool = False
    started: float | None = None

    def timed(self, outcome: JobOutcome, end: float) -> JobOutcome:
        """Adds the seconds that the job waited and was computed to its result. Errors stay as they are."""
        if isinstance(outcome, SelvageError):
            return outcome
        started = self.submitted if self.started is None else self.started
        return replace(outcome, queue=started - self.submitted, compute=end - started)


class UnansweredJobs:
    """Jobs that were accepted and have no outcome yet.

    Length and membership may be asked for in other threads.
    """

    def __init__(self) -> None:
        self._open: dict[int, OpenJob] = {}
        self._records: dict[OpenJob, UnansweredJob] = {}
        self._deadlines: list[tuple[float, int]] = []  # heap of deadline and id, also of jobs that ended

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, open_job: object) -> bool:
        """Whether an open job has no outcome yet."""
        return open_job in self._records

    @property
    def ids(self) -> list[int]:
        """The ids of all jobs, in the order in which they came."""
        return list(self._open)

    def of(self, identity: int) -> OpenJob | None:
        """The open job with an id; None where there is none."""
        return self._open.get(identity)

    def record_of(self, open_job: OpenJob) -> UnansweredJob | None:
        """The record of an open job; None once it has an outcome."""
        return self._records.get(open_job)

    def plan(self, open_job: OpenJob) -> None:
        """Notes that a slice of a job is in a step."""
        self._records[open_job].planned = True

    def take_expired(self, now: float) -> list[int]:
        """Removes the deadlines that are not after `now`, and returns the ids of their jobs."""
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, identity = heapq.heappop(self._deadlines)
            open_job = self._open.get(identity)
            if open_job is not None and self._records[open_job].deadline == deadline:  # else its job has ended
                expired.append(identity)
        return expired

    def seconds_to_deadline(self, now: float) -> float:
        """Seconds to the earliest deadline, or to an earlier one of a job that ended; `inf` where there is none."""
        return max(0.0, self._deadlines[0][0] - now) if self._deadlines else inf

    def add(self, open_job: OpenJob, unanswered: UnansweredJob) -> None:
        """Adds a job that was accepted."""
        identity = unanswered.job.id
        self._open[identity], self._records[open_job] = open_job, unanswered
        if unanswered.deadline < inf:
            heapq.heappush(self._deadlines, (unanswered.deadline, identity))

    def remove(self, identity: int) -> UnansweredJob:
        """Drops the records of a job, and returns the one of it."""
        # This is safe while another thread collects a step with a slice of the job. That thread reaches the open job
        # through the step, not through these records, and only looks up whether the job is unanswered: at worst it
        # makes a result for nobody. `Scheduler.end_step`, in this thread, then finds no record and answers nobody.
        # Records and outcomes belong to the open job, not to its id, so a new job of the same id gets nothing of the
        # old one.
        # `test_a_job_may_be_cancelled_while_its_step_is_collected` holds it.
        record = self._records.pop(self._open.pop(identity))
        if len(self._deadlines) > 2 * len(self._open) + STALE_ENTRIES:  # else those of jobs that ended would pile up
            left = [(record.deadline, record.job.id) for record in self._records.values()]
            self._deadlines = [entry for entry in left if entry[0] < inf]
            heapq.heapify(self._deadlines)
        return record

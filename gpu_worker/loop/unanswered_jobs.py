"""The loop's records of the jobs that have no outcome yet. No torch, asyncio or gRPC."""

from math import inf

from gpu_worker.loop.deadlines import Deadlines
from gpu_worker.loop.interface import OpenJob
from gpu_worker.loop.steps import UnansweredJob


class UnansweredJobs:
    """Jobs that were accepted and have no outcome yet.

    Length and membership may be asked for in other threads.
    """

    def __init__(self) -> None:
        self._open: dict[int, OpenJob] = {}
        self._records: dict[OpenJob, UnansweredJob] = {}
        self._deadlines = Deadlines()

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
        """Removes the deadlines that have passed, and returns the ids of their jobs."""
        return self._deadlines.take_expired(now)

    def seconds_to_deadline(self, now: float) -> float:
        """Seconds to the earliest deadline, or to an earlier one of a job that ended; `inf` where there is none."""
        return max(0.0, self._deadlines.earliest - now)

    def add(self, open_job: OpenJob, unanswered: UnansweredJob, deadline: float) -> None:
        """Adds a job that was accepted. `deadline`: on the loop's clock; `inf` for none."""
        identity = unanswered.job.id
        self._open[identity], self._records[open_job] = open_job, unanswered
        if deadline < inf:
            self._deadlines.add(identity, deadline)

    def remove(self, identity: int) -> UnansweredJob:
        """Drops the records of a job, and returns the one of it."""
        # This is safe while another thread collects a step with a slice of the job. That thread reaches the open job
        # through the step, not through these records, and only looks up whether the job is unanswered: at worst it
        # makes a result for nobody. `Loop.end_step`, in this thread, then finds no record and answers nobody. Records
        # and outcomes belong to the open job, not to its id, so a new job of the same id gets nothing of the old one.
        # `test_a_job_may_be_cancelled_while_its_step_is_collected` holds it.
        self._deadlines.remove(identity)
        return self._records.pop(self._open.pop(identity))

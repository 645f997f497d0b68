"""The loop's records of the jobs that have no outcome yet. No torch, asyncio or gRPC."""

from math import inf

from gpu_worker.loop.deadlines import Deadlines
from gpu_worker.loop.interface import OpenJob
from gpu_worker.loop.slowdowns import Slowdowns
from gpu_worker.loop.steps import UnansweredJob
from shared.load import SHORT


class UnansweredJobs:
    """Jobs that were accepted and have no outcome yet.

    `open`: the open jobs, by id. `unanswered`: the records, by open job. `deadlines`: by id. `slowdowns`: how much
    longer than expected jobs took that ended.
    """

    def __init__(self) -> None:
        self.open: dict[int, OpenJob] = {}
        self.unanswered: dict[OpenJob, UnansweredJob] = {}
        self.deadlines, self.slowdowns = Deadlines(), Slowdowns()

    def add(self, open_job: OpenJob, unanswered: UnansweredJob, deadline: float) -> None:
        """Adds a job that was accepted. `deadline`: on the loop's clock; `inf` for none."""
        identity = unanswered.job.id
        self.open[identity], self.unanswered[open_job] = open_job, unanswered
        if deadline < inf:
            self.deadlines.add(identity, deadline)

    def remove(self, identity: int) -> UnansweredJob:
        """Drops the records of a job, and returns the one of it."""
        # This is safe while another thread collects a step with a slice of the job. That thread reaches the open job
        # through the step, not through these records, and only looks up whether the job is unanswered: at worst it
        # makes a result for nobody. `Loop.end_step`, in this thread, then finds no record and answers nobody. Records
        # and outcomes belong to the open job, not to its id, so a new job of the same id gets nothing of the old one.
        # `test_a_job_may_be_cancelled_while_its_step_is_collected` holds it.
        self.deadlines.remove(identity)
        return self.unanswered.pop(self.open.pop(identity))

    def learn_slowdown(self, unanswered: UnansweredJob, *, now: float, ended: bool) -> None:
        """Learns how much longer than expected a job took: one with a result, or one that had no result by then."""
        expected, taken = unanswered.expected, now - unanswered.submitted
        if expected and (ended or taken > expected):
            kind = unanswered.job.priority, unanswered.cost >= SHORT
            self.slowdowns.learn(kind, expected=expected, taken=taken, now=now)

"""Counts of the jobs that wait, kept while they come and go. No clock, no I/O."""

from collections import Counter
from dataclasses import dataclass, field

from gpu_worker.queue.waiting_job import WaitingJob
from shared.load import Backlog


@dataclass(slots=True, kw_only=True)
class BacklogCounts:
    """What waits of one priority, also in line for room, but not what is set aside: see `Backlog`.

    `by_key`: the tokens of each fairness key that has any waiting.
    """

    jobs: int = 0
    tokens: int = 0
    long_jobs: int = 0
    long_tokens: int = 0
    by_key: Counter[str] = field(default_factory=Counter)

    @property
    def backlog(self) -> Backlog:
        """In the form that frontends receive."""
        return Backlog(
            keys=len(self.by_key),
            jobs=self.jobs,
            tokens=self.tokens,
            long_jobs=self.long_jobs,
            long_tokens=self.long_tokens,
        )

    def add_job(self, job: WaitingJob) -> None:
        """Counts a job that begins to wait."""
        self.jobs += 1
        self.tokens += job.tokens
        self.by_key[job.key] += job.tokens
        if job.long:
            self.long_jobs += 1
            self.long_tokens += job.tokens

    def remove_job(self, job: WaitingJob) -> None:
        """Counts a job with what is left of it no more."""
        self.serve(job, job.tokens, done=True)

    def serve(self, job: WaitingJob, cost: int, *, done: bool) -> None:
        """Counts `cost` tokens of a job no more. `done`: nothing of it waits any more."""
        self.tokens -= cost
        self.by_key[job.key] -= cost
        if not self.by_key[job.key]:
            del self.by_key[job.key]
        if done:
            self.jobs -= 1
        if job.long:
            self.long_jobs -= done
            self.long_tokens -= cost

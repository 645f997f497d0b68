"""Counts of the jobs that stand in line for room. No clock, no I/O."""

from collections import Counter
from dataclasses import dataclass, field

from gpu_worker.queue.size_counts import SizeCounts
from gpu_worker.queue.waiting_job import WaitingJob


@dataclass(slots=True, kw_only=True)
class LineCounts:
    """What the jobs of one priority that stand in line have left: `tokens` in all, by fairness key, and `sizes`."""

    tokens: int = 0
    by_key: Counter[str] = field(default_factory=Counter)
    sizes: SizeCounts = field(default_factory=SizeCounts)

    def add_job(self, job: WaitingJob) -> None:
        """Counts a job that comes into the line."""
        self.tokens += job.tokens
        self.by_key[job.key] += job.tokens
        self.sizes.add_job(job.tokens)

    def remove_job(self, job: WaitingJob) -> None:
        """Counts a job of the line no more. It has as many tokens as when it came."""
        self.tokens -= job.tokens
        self.by_key[job.key] -= job.tokens
        if not self.by_key[job.key]:
            del self.by_key[job.key]
        self.sizes.remove_job(job.tokens)

"""Refuses jobs on arrival that would wait too long. No clock, no I/O."""

from collections import Counter
from math import inf

from shared.errors import Overloaded
from shared.estimate import LENIENCE
from shared.jobs import Job
from shared.load import Load


class QueueAdmission:
    """Refuses jobs that would wait too long. `refused`: how many so far, by reason."""

    def __init__(self, *, queued_tokens: int, queue_seconds: float = inf) -> None:
        """`queued_tokens`: most tokens that may wait. `queue_seconds`: the longest wait of a job."""
        self._queued_tokens, self._queue_seconds = queued_tokens, queue_seconds
        self.refused: Counter[str] = Counter()

    def check_job(self, job: Job, cost: int, load: Load, *, of_key: int = 0, since: int = 0) -> None:
        """Raises Overloaded for a job of `cost` tokens that may not wait.

        `of_key`: tokens of its key that wait. `since`: tokens of the jobs that came since the load was made.
        """
        estimate, queued = load.estimate(cost, job.priority, of_key, since), load.queued_tokens + since
        if queued and queued + cost > self._queued_tokens:
            self.refused["queued_tokens"] += 1
            message = f"{queued} tokens wait, this job costs {cost}, the limit is {self._queued_tokens}"
            raise Overloaded(message, retry_after=estimate.retry_after)
        refusal = estimate.refusal(job.remaining, limit=self._queue_seconds, lenience=LENIENCE)
        if refusal is not None:
            reason, error = refusal
            self.refused[reason] += 1
            raise error

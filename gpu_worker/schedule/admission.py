"""Refuses jobs on arrival that would wait too long, and counts the work that comes. No clock, no I/O."""

from collections import Counter
from math import exp, inf

from shared.errors import Overloaded
from shared.estimate import LENIENCE
from shared.jobs import Job
from shared.load import Load

RECENT_SECONDS = 1.0


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


class RecentWork:
    """Tokens that came, each counted the less the longer ago it came."""

    def __init__(self, seconds: float = RECENT_SECONDS) -> None:
        """`seconds`: after which what came counts a third of what comes now."""
        self._seconds, self._tokens, self._since = seconds, 0.0, 0.0

    def add(self, tokens: int, now: float) -> None:
        """Counts tokens that came `now`, in seconds of any clock that never goes back."""
        self._tokens, self._since = self._left(now) + tokens, now

    def rate(self, now: float) -> float:
        """Tokens that came in a second lately."""
        return self._left(now) / self._seconds

    def _left(self, now: float) -> float:
        return self._tokens * exp((self._since - now) / self._seconds)

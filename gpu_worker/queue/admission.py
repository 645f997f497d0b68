"""Refuses jobs on arrival that would wait too long. No clock, no I/O."""

from collections import Counter
from dataclasses import dataclass
from math import inf

from shared.errors import Overloaded
from shared.estimate import LENIENCE, Estimate, queue_refusal, retry_after
from shared.jobs import Job
from shared.load import Load


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Above these limits further jobs are refused.

    `queued_tokens`: most tokens that may wait. `queue_seconds`: longest wait for steps under way, for higher classes,
    and for the part of its own class that comes first.
    """

    queued_tokens: int
    queue_seconds: float = inf


class QueueAdmission:
    """Refuses jobs, and counts refusals by reason. Where nothing waits or is computed, every job is accepted."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self.refused: Counter[str] = Counter()

    def accepts_at_once(
        self,
        job: Job,
        cost: int,
        *,
        queued_tokens: int,
        busy: float,
        tokens_per_second: float,
        step_tokens: int,
        slowdown: float,
    ) -> bool:
        """Whether `check_job` accepts a job of `cost` tokens, and returns 0, in whatever order jobs are served: behind
        all that waits, and slowed down as much as any job can be, it is in time, and done within the time of a full
        step. It spares most jobs the making of a load, which takes much longer.

        `slowdown`: the highest that is told. All else: see `Load`.
        """
        limits = self._limits
        if queued_tokens and queued_tokens + cost > limits.queued_tokens:
            return False
        if not tokens_per_second:
            return True
        longest_wait = busy + queued_tokens / tokens_per_second
        if longest_wait > LENIENCE * limits.queue_seconds:
            return False
        estimate = Estimate(wait=longest_wait, takes=cost / tokens_per_second, slowdown=slowdown)
        return estimate.seconds * tokens_per_second < step_tokens and estimate.in_time(job.remaining)

    def check_job(self, job: Job, cost: int, load: Load, *, of_key: int) -> float:
        """Returns the seconds after which a job of `cost` tokens is done if no more come; 0 where unknown, and where
        its own steps cost more than others can: where it is done within the time of a full step.

        `of_key`: tokens of its key that wait. Raises Overloaded for a job that may not wait.
        """
        speed, limits = load.tokens_per_second, self._limits
        if load.queued_tokens and load.queued_tokens + cost > limits.queued_tokens:
            wait = load.wait(cost, job.priority, of_key) if speed else 1.0
            message = f"{load.queued_tokens} tokens wait, this job costs {cost}, the limit is {limits.queued_tokens}"
            raise self._refusal("queued_tokens", message, wait)
        if not speed or not (load.queued_tokens or load.busy):
            return 0.0
        longest_wait = load.busy + load.queued_tokens / speed  # if all that waits came first; mostly this is enough
        if longest_wait > LENIENCE * limits.queue_seconds:
            wait = load.queue_seconds(cost, job.priority, of_key)
            if wait > LENIENCE * limits.queue_seconds:
                raise self._refusal("queue_seconds", queue_refusal(wait, limits.queue_seconds), wait)
        slowdown = load.slowdown(cost, job.priority)
        estimate = Estimate(wait=load.wait(cost, job.priority, of_key), takes=cost / speed, slowdown=slowdown)
        try:
            estimate.check(job.remaining)
        except Overloaded:
            self.refused["deadline"] += 1
            raise
        return estimate.seconds if estimate.seconds * speed >= load.step_tokens else 0.0

    def _refusal(self, reason: str, message: str, wait: float) -> Overloaded:
        self.refused[reason] += 1
        return Overloaded(message, retry_after=retry_after(wait))

"""When a job would be answered at a worker's present speed, and whether that is soon enough. Standard library only."""

from dataclasses import dataclass
from math import inf

from shared.errors import Overloaded

MARGIN, UNREAD_MARGIN = 0.8, 0.7
"""Part of the caller's remaining time that an estimate may fill, because a worker may become a quarter slower.

Requests that have not been read yet are held to the smaller part: under load the wait settles at the part that is
checked first, and a request that is refused later was read and tokenised for nothing."""
LENIENCE = 1.05
"""A worker lets jobs wait this many times its limit. Frontends keep to the limit itself, before they read a request,
and what they know of the worker's load is a moment old."""
LEAST_RETRY, LONGEST_RETRY, UNKNOWN_RETRY = 0.1, 60.0, 1.0
"""Bounds of the time after which a refused caller is told to try again, in seconds, and that time where no wait is
known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What is known in advance of a job's time at a worker, in seconds.

    `wait`, the wait of a job: the most that other jobs take before it is complete, its own tokens not counted; 0 where
    unknown. `takes`: what its own tokens take; 0 where unknown.
    """

    wait: float = 0.0
    takes: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds until the job is complete."""
        return self.wait + self.takes

    @property
    def retry_after(self) -> float:
        """The time after which a refused caller is told to try again, in seconds: the wait of its job.

        It is told in tenths, so that many refusals are equal and their statuses are made once
        (`shared.server.status`).
        """
        return round(min(max(self.wait or UNKNOWN_RETRY, LEAST_RETRY), LONGEST_RETRY), 1)

    def in_time(self, remaining: float | None, margin: float = MARGIN) -> bool:
        """Whether the job may be tried with the seconds that the caller has left; None: no deadline.

        A job that is late by its own size alone is tried, since the estimate may be wrong.
        """
        return not self.wait or remaining is None or self.seconds <= margin * remaining

    def late(self, remaining: float | None, margin: float) -> Overloaded:
        """The refusal of a job that is not in time."""
        alone = f"{self.takes:.1f} s, " if round(self.takes, 1) else ""
        return Overloaded(
            f"an answer needs {alone}up to {self.seconds:.1f} s while others are served, {self.seconds / margin:.1f} s "
            f"if the worker slows down; the deadline is in {remaining:.1f} s",
            retry_after=self.retry_after,
        )

    def refusal(
        self, remaining: float | None, *, margin: float = MARGIN, limit: float = inf, lenience: float = 1.0
    ) -> tuple[str, Overloaded] | None:
        """Why a job may not be tried: the name of what it exceeds, and the error; None where it may.

        `limit`: the longest wait in seconds, which may be exceeded `lenience` times. For the rest see `in_time`.
        """
        if self.wait > lenience * limit:
            why = f"it would wait up to {self.wait:.1f} s, the limit is {limit:g} s"
            return "queue_seconds", Overloaded(why, retry_after=self.retry_after)
        return None if self.in_time(remaining, margin) else ("deadline", self.late(remaining, margin))

"""When a job would be answered at a worker's present speed, and whether that is soon enough. Standard library only."""

from dataclasses import dataclass

from shared.errors import Overloaded

MARGIN, UNREAD_MARGIN = 0.8, 0.7
"""Part of the caller's remaining time that an estimate may fill, because a worker may become a quarter slower.

Requests that have not been read yet are held to the smaller part: under load the wait settles at the part that is
checked first, and a request that is refused later was read and tokenised for nothing."""
LENIENCE = 1.05
"""A worker lets jobs wait this many times its limit. Frontends keep to the limit itself, before they read a request,
and what they know of the worker's load is a moment old."""
LEAST_RETRY, LONGEST_RETRY = 0.1, 60.0
"""Bounds of the time after which a refused caller is told to try again, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What is known in advance of a job's time at a worker, in seconds.

    `wait`, the wait of a job: the most that other jobs take before it is complete, its own tokens not counted, if no
    more come; 0 where unknown. `takes`: what its own tokens take; 0 where unknown. `slowdown`: how many times longer
    such jobs take lately, because more do come.
    """

    wait: float
    takes: float = 0.0
    slowdown: float = 1.0

    @property
    def seconds(self) -> float:
        """Seconds until the job is complete, if no more come."""
        return self.wait + self.takes

    @property
    def slowed(self) -> float:
        """Seconds until the job is complete, if as many come as lately."""
        return self.seconds * self.slowdown

    def in_time(self, remaining: float | None, margin: float = MARGIN) -> bool:
        """Whether the job may be tried, see `check`."""
        return not self.wait or remaining is None or self.slowed <= margin * remaining

    def check(self, remaining: float | None, margin: float = MARGIN) -> None:
        """Compares the estimate with the seconds that the caller has left; None: no deadline.

        Raises Overloaded where other jobs would make the answer too late. A job that is late by its own size alone is
        tried, since the estimate may be wrong.
        """
        if not self.in_time(remaining, margin):
            end = self.slowed
            alone = f"{self.takes:.1f} s, " if round(self.takes, 1) else ""
            raise Overloaded(
                f"an answer needs {alone}up to {end:.1f} s while others are served, {end / margin:.1f} s if the worker "
                f"slows down; the deadline is in {remaining:.1f} s",
                retry_after=retry_after(self.wait),
            )


def queue_refusal(seconds: float, limit: float) -> str:
    """The text for a job that would stand in a worker's queue for so many seconds, of which `limit` are allowed."""
    return f"it would wait up to {seconds:.1f} s, the limit is {limit:g} s"


def retry_after(seconds: float) -> float:
    """The time after which a refused caller is told to try again, in seconds.

    It is told in tenths, so that many refusals are equal and their statuses are made once (`shared.server.rpc.status`).
    """
    return round(min(max(seconds, LEAST_RETRY), LONGEST_RETRY), 1)

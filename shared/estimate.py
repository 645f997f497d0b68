"""When a job would be answered at a worker's present speed, and whether that is soon enough. Standard library only."""

from dataclasses import dataclass

from shared.errors import Overloaded

MARGIN, UNREAD_MARGIN = 0.8, 0.7
"""The share of a caller's time that an estimate may fill: a worker may turn out a quarter slower than it was. Requests
that have not been read are held to the smaller share: under load the wait settles at the share that is asked for
first, and what is refused later has been read and tokenised for nothing."""
LENIENCE = 1.05
"""A worker lets jobs wait this many times its limit: what a frontend knows of its load is a moment old, and a frontend
keeps to the limit itself, before it reads."""
LEAST_RETRY, LONGEST_RETRY = 0.1, 60.0
"""Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Seconds, at most, until a job's turn (`wait`), and those that its own tokens take (`takes`); 0 where unknown."""

    wait: float
    takes: float = 0.0

    def check(self, remaining: float | None, margin: float = MARGIN) -> None:
        """Holds it against the seconds that the caller has left; None: as many as it likes.

        Raises Overloaded where other work would make the answer too late. A job's own size never does: it is tried.
        """
        end = self.wait + self.takes
        if self.wait and remaining is not None and end > margin * remaining:
            slower = f"{end / margin:.1f} s if the worker slows down"
            raise Overloaded(
                f"an answer needs up to {end:.1f} s, {slower}; the deadline is in {remaining:.1f} s",
                retry_after=retry_after(self.wait),
            )


def retry_after(seconds: float) -> float:
    """A wait that a caller may be told, in seconds."""
    return min(max(seconds, LEAST_RETRY), LONGEST_RETRY)

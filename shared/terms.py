"""Terms on which a request is served: deadline, fairness key, priority. Standard library only."""

import time
from dataclasses import dataclass

from shared.jobs import Priority


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of the monotonic clock, in seconds."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """A deadline that is `seconds` from now."""
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left, 0 when it has passed."""
        return max(0.0, self.at - time.monotonic())


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTerms:
    """The deadline, fairness key and priority of a request, and its id in logs and traces."""

    deadline: Deadline
    key: str = ""
    priority: Priority = Priority.DEFAULT
    request_id: str = ""
    traceparent: str = ""

    @classmethod
    def within(cls, seconds: float) -> "RequestTerms":
        """Terms with a deadline in `seconds` and defaults for the rest."""
        return cls(deadline=Deadline.after(seconds))

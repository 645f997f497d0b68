"""Terms on which a request is served: deadline, fairness key, priority. Standard library only."""

from dataclasses import dataclass

from shared.deadline import Deadline
from shared.jobs import Priority


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

"""On what terms a request is served. Standard library only."""

from dataclasses import dataclass

from shared.deadline import Deadline
from shared.jobs import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTerms:
    """Until when somebody waits, for whom it is (a fairness key), how urgent it is, its name in logs, its trace."""

    deadline: Deadline
    key: str = ""
    priority: Priority = Priority.DEFAULT
    request_id: str = ""
    traceparent: str = ""

    @classmethod
    def within(cls, seconds: float) -> "RequestTerms":
        """For whoever has nothing to say but how long it waits."""
        return cls(deadline=Deadline.after(seconds))
